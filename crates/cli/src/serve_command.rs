//! `ethernot serve`: the server side of `ethernot bench --peer`.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use bench::run::CONTROL_PORT;
use bench::{cpu, server};
use clap::Args;
use serde_json::json;

use crate::Failure;
use crate::link_names::{LinkNames, parse_links, try_links};

/// Serve benchmark clients on other hosts until interrupted.
///
/// Any host that reaches the port can cause load on this host, so run the command only on networks
/// that you trust.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ethernot serve --listen 192.0.2.2:7471\n  \
                        ethernot serve --links eth0,packet:eth1\n  \
                        and on the other host: ethernot bench --peer 192.0.2.2")]
pub(crate) struct Arguments {
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS:PORT",
          default_value_t = SocketAddr::from((Ipv4Addr::UNSPECIFIED, CONTROL_PORT)))]
    listen: SocketAddr,
    /// Links for transports with named links, such as eth0,packet:eth1,xdp:eth2:0 [default: UDP on
    /// each address through which a client reaches this host]
    #[arg(long, value_name = "LINKS", value_parser = parse_links)]
    links: Option<LinkNames>,
    /// Do not restrict the server to one CPU
    #[arg(long)]
    no_pinning: bool,
    /// Report clients in JSON lines
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let links = arguments.links.as_ref().map_or(&[][..], |names| &names.0);
    try_links(links)?;
    let address = arguments.listen;
    let listener = TcpListener::bind(address).map_err(|error| {
        format!("listen on {address}: {error}; choose another address with --listen ADDRESS:PORT")
    })?;
    let address = listener.local_addr()?;
    if let Some([_, cpu]) = cpu::first_two().filter(|_| !arguments.no_pinning) {
        cpu::pin_to(cpu)
            .map_err(|error| format!("pin the server to CPU {cpu}: {error}; try --no-pinning"))?;
    }
    if arguments.json {
        println!("{}", json!({ "listening": address }));
    } else {
        println!("listening on {address}; end with Ctrl-C");
    }
    server::serve(&listener, links, |peer, outcome| {
        let error = outcome.err().map(|error| error.to_string());
        if arguments.json {
            println!("{}", json!({ "client": peer, "error": error }));
        } else {
            match error {
                None => println!("{peer}: done"),
                Some(error) => println!("{peer}: {error}"),
            }
        }
    })?;
    Ok(())
}
