//! A key-value store. A get reads the server's memory, and the server's application does nothing. A
//! put is either a message to the server, or a compare-and-swap followed by writes.
//!
//! ```sh
//! cargo run --release -p ethernot --example key_value -- serve 127.0.0.1:7000
//! cargo run --release -p ethernot --example key_value -- put 127.0.0.1:7000 42 "a value"
//! cargo run --release -p ethernot --example key_value -- get 127.0.0.1:7000 42
//! ```
//!
//! Without arguments, the program runs a server and clients over loopback. The clients exchange
//! values and check them.
#![forbid(unsafe_code)]

mod store;

use std::thread;

use ethernot::{Endpoint, Error};
use store::{Client, Server};

type Failure = Box<dyn std::error::Error + Send + Sync>;

pub(crate) fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["serve", address] => {
            let endpoint = Endpoint::bind(address)?;
            println!("serving on {:?}", endpoint.local_addresses()?);
            Ok(Server::new(&endpoint, 1 << 16)?.serve(u64::MAX, None)?)
        }
        ["get", address, key] => {
            let value =
                Client::connect(&Endpoint::builder().build()?, address)?.get(key.parse()?)?;
            println!(
                "{}",
                value.map_or("none".into(), |value| String::from_utf8_lossy(&value).into_owned())
            );
            Ok(())
        }
        ["put", address, key, value] => {
            let mut client = Client::connect(&Endpoint::builder().build()?, address)?;
            println!("{}", client.put_by_swap(key.parse()?, value.as_bytes())?);
            Ok(())
        }
        _ => Ok(demonstrate()?),
    }
}

/// Runs a server, and clients that put and get at the same time.
pub(crate) fn demonstrate() -> Result<(), Error> {
    const CLIENTS: u64 = 3;
    const ROUNDS: u64 = 200;
    let endpoint = Endpoint::bind("127.0.0.1:0")?;
    let address = endpoint.local_addresses()?[0];
    let server = Server::new(&endpoint, 1000)?;
    thread::scope(|scope| {
        let serving = scope.spawn(|| server.serve(CLIENTS, store::LIMIT));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                scope.spawn(move || -> Result<(), Error> {
                    let mut client = Client::connect(&Endpoint::bind("127.0.0.1:0")?, address)?;
                    for round in 0..ROUNDS {
                        // Key 1 is common to all clients. In addition, each client has a key of its
                        // own.
                        let value = [number as u8; store::VALUE_MAX];
                        assert!(client.put_by_swap(1, &value)?);
                        let shared = client.get(1)?.expect("it was put");
                        assert!(shared.iter().all(|byte| *byte == shared[0]), "a torn value");
                        let value = format!("{number} in round {round}");
                        assert!(client.put_by_message(100 + number, value.as_bytes())?);
                        assert_eq!(client.get(100 + number)?, Some(value.into_bytes()));
                    }
                    assert_eq!(client.get(99)?, None);
                    Ok(())
                })
            })
            .collect();
        for client in clients {
            client.join().expect("it does not panic")?;
        }
        serving.join().expect("it does not panic")
    })?;
    for number in 0..CLIENTS {
        let last = format!("{number} in round {}", ROUNDS - 1);
        assert_eq!(server.get(100 + number)?, Some(last.into_bytes()));
    }
    println!("{CLIENTS} clients put and got {ROUNDS} times each");
    Ok(())
}
