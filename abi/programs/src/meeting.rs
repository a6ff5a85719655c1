//! Servers and clients that find each other by the connection manager.

use crate::network::{Network, Side};
use crate::process::{Finished, Program, expect_both};

/// A server and a client of it. In their arguments, `ADDRESS` stands for that of the server, `PORT` for its port.
#[derive(Clone, Copy, Debug)]
pub struct Meeting<'a> {
    /// Their programs, that of the server first.
    pub programs: [&'a str; 2],
    /// Arguments of the server.
    pub server: &'a str,
    /// Those of the client.
    pub client: &'a str,
    /// How the server ends.
    pub ends: Ends,
}

/// How a server ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Ends {
    /// By itself.
    ByItself,
    /// It serves for ever, and is ended when its client is done.
    Never,
}

impl Meeting<'_> {
    /// Runs both, with these variables in their environment.
    ///
    /// # Panics
    /// If one of them fails.
    pub fn run(&self, network: &Network, port: u16, variables: &[(&str, &str)]) -> Finished {
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
        running.wait_for_manager_port(port);
        let asked = program(client, self.client).run(network, Side::Client);
        if self.ends == Ends::Never {
            asked.expect_success();
            return asked;
        }
        let ended = [running.finish(), asked];
        expect_both(&ended);
        let [_, asked] = ended;
        asked
    }
}
