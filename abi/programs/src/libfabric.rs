//! libfabric's ping-pong program.

use crate::network::{Network, Side};
use crate::process::{Finished, Program};

/// Runs `fi_pingpong`, which verifies received data, between two endpoints of libfabric. `endpoint`
/// has the provider and the type of both endpoints. The client runs on side `client`. Both sides
/// get the arguments `more`. Returns both results, the server's first.
pub fn fi_pingpong(
    network: &Network,
    client: Side,
    port: u16,
    endpoint: (&str, &str),
    more: &str,
) -> [Finished; 2] {
    fi_pingpong_with(network, client, port, endpoint, more, &[])
}

/// Runs `fi_pingpong` like [`fi_pingpong`], with environment variables.
pub fn fi_pingpong_with(
    network: &Network,
    client: Side,
    port: u16,
    (provider, kind): (&str, &str),
    more: &str,
    variables: &[(&str, &str)],
) -> [Finished; 2] {
    println!("fi_pingpong -p {provider} -e {kind} {more}");
    let side = |ports: &str| {
        let program = Program::new("fi_pingpong", &format!("{ports} -e {kind} -c {more} -p"));
        let program = program.argument(&provider);
        variables.iter().fold(program, |program, (name, value)| program.variable(name, value))
    };
    let mut running = side(&format!("-B {port}")).start(network, Side::Server);
    running.wait_for_listener(port);
    let asks = side(&format!("-P {port}")).argument(&network.server_address());
    let asked = asks.run(network, client);
    [running.finish(), asked]
}
