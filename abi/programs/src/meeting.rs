//! Servers and clients that connect through the connection manager.

use crate::network::{Network, Side};
use crate::process::{Finished, Program, Running, expect_both};

/// A server and its client. In their arguments, `ADDRESS` stands for the server's address and
/// `PORT` for its port.
#[derive(Clone, Copy, Debug)]
pub struct Meeting<'a> {
    /// The programs, the server's first.
    pub programs: [&'a str; 2],
    /// Arguments of the server.
    pub server: &'a str,
    /// Arguments of the client.
    pub client: &'a str,
    /// When the server ends.
    pub ends: Ends,
}

/// When a server ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Ends {
    /// The server exits after its client.
    ByItself,
    /// The server never exits; the test kills it after the client has ended.
    Never,
}

impl Meeting<'_> {
    /// Runs server and client, with these environment variables. Returns the client's result.
    ///
    /// # Panics
    /// Panics if the server or the client fails.
    pub fn run(&self, network: &Network, port: u16, variables: &[(&str, &str)]) -> Finished {
        self.run_when(Running::wait_for_manager_port, network, port, variables)
    }

    /// Runs server and client as [`Self::run`] does, but with an iWARP device, whose connection
    /// manager listens at a TCP port.
    ///
    /// # Panics
    /// Panics if the server or the client fails.
    pub fn run_over_iwarp(&self, network: &Network, port: u16) -> Finished {
        self.run_over_iwarp_with(network, port, &[])
    }

    /// Runs server and client as [`Self::run_over_iwarp`] does, with these environment variables
    /// besides.
    ///
    /// # Panics
    /// Panics if the server or the client fails.
    pub fn run_over_iwarp_with(
        &self,
        network: &Network,
        port: u16,
        variables: &[(&str, &str)],
    ) -> Finished {
        let all: Vec<_> = [("ETHERNOT_DEVICE", "iwarp")].iter().chain(variables).copied().collect();
        self.run_when(Running::wait_for_listener, network, port, &all)
    }

    /// Starts the client after `wait_for_port` has returned.
    fn run_when(
        &self,
        wait_for_port: impl Fn(&mut Running, u16),
        network: &Network,
        port: u16,
        variables: &[(&str, &str)],
    ) -> Finished {
        let address = network.server_address().to_string();
        let program = |name: &str, arguments: &str| {
            let arguments =
                arguments.replace("ADDRESS", &address).replace("PORT", &port.to_string());
            let program = Program::new(name, &arguments);
            variables.iter().fold(program, |program, (name, value)| program.variable(name, value))
        };
        let [server, client] = self.programs;
        println!("{server} {}; {client} {}", self.server, self.client);
        let mut running = program(server, self.server).start(network, Side::Server);
        wait_for_port(&mut running, port);
        let asked = program(client, self.client).run(network, Side::Client);
        if self.ends == Ends::Never {
            asked.expect_success();
            return asked;
        }
        let ended = [running.finish_after(&asked), asked];
        expect_both(&ended);
        let [_, asked] = ended;
        asked
    }
}
