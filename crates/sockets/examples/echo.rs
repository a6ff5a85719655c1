//! Measures round trips or one stream between two processes over the loopback interface, by the
//! edge or by kernel TCP:
//!
//! ```sh
//! cargo run --release -p sockets --example echo -- edge ping 20000
//! cargo run --release -p sockets --example echo -- tcp stream 4000
//! ```
//!
//! The last argument is the number of round trips (`ping`, 14 bytes in each direction) or of writes
//! (`stream`, 128 KiB each).
#![expect(clippy::disallowed_methods, reason = "it measures time")]

use std::error::Error;
use std::io::{BufRead, BufReader, IoSlice, IoSliceMut, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use sockets::{Connection, DescriptorTable, ReceiveFlags, Route, SendFlags, Settings, Sockets};

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", by] => serve(by == "edge"),
        [by @ ("edge" | "tcp"), what @ ("ping" | "stream"), count] => {
            measure(by, what, count.parse()?)
        }
        _ => Err("arguments: edge|tcp ping|stream COUNT".into()),
    }
}

fn measure(by: &str, what: &str, count: u32) -> Outcome<()> {
    let mut server = Command::new(std::env::current_exe()?)
        .args(["serve", by])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut address = String::new();
    let output = server.stdout.take().ok_or("no output")?;
    BufReader::new(output).read_line(&mut address)?;
    let tcp = TcpStream::connect(address.trim())?;
    tcp.set_nodelay(true)?;
    let end = End::new(tcp, (by == "edge").then_some(Side::Connecting))?;
    let (length, answered_each) = if what == "ping" { (14, 1) } else { (128 * 1024, count) };
    end.send(&(length as u32).to_be_bytes())?;
    end.send(&answered_each.to_be_bytes())?;
    let bytes = vec![7; length];
    let mut answer = vec![0; 14];
    // The first round trips make the connection move to the edge.
    let round = |answer: &mut [u8]| -> Outcome<()> {
        for _ in 0..answered_each {
            end.send(&bytes)?;
        }
        end.receive(answer)
    };
    let began = Instant::now();
    while end.is_undecided()? && began.elapsed().as_secs() < 5 {
        round(&mut answer)?;
    }
    let began = Instant::now();
    let rounds = count / answered_each;
    for _ in 0..rounds {
        round(&mut answer)?;
    }
    let seconds = began.elapsed().as_secs_f64();
    if what == "ping" {
        println!("{by}: {:.2} us one way", seconds / f64::from(rounds) / 2.0 * 1e6);
    } else {
        let bits = length as f64 * f64::from(count) * 8.0;
        println!("{by}: {:.2} Gb/s", bits / seconds / 1e9);
    }
    server.kill()?;
    server.wait()?;
    Ok(())
}

fn serve(by_edge: bool) -> Outcome<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    let (tcp, _) = listener.accept()?;
    tcp.set_nodelay(true)?;
    let end = End::new(tcp, by_edge.then_some(Side::Accepting))?;
    let [mut length, mut each] = [[0; 4]; 2];
    end.receive(&mut length)?;
    end.receive(&mut each)?;
    let mut bytes = vec![0; u32::from_be_bytes(length) as usize];
    loop {
        for _ in 0..u32::from_be_bytes(each) {
            if end.receive(&mut bytes).is_err() {
                // The client has closed its end.
                return Ok(());
            }
        }
        end.send(&bytes[..14])?;
    }
}

/// One end of the connection.
enum End {
    Tcp(TcpStream),
    Edge { _sockets: Sockets, connection: Arc<Connection>, program: Arc<Program> },
}

enum Side {
    Connecting,
    Accepting,
}

/// The descriptor table of a program with one descriptor.
struct Program(Mutex<Arc<OwnedFd>>);

impl DescriptorTable for Program {
    fn duplicate(&self, _token: u64) -> Option<OwnedFd> {
        self.fd().try_clone().ok()
    }

    fn put(&self, _token: u64, end: OwnedFd) -> bool {
        *self.0.lock().expect("no panic") = Arc::new(end);
        true
    }

    fn is_shared(&self, _token: u64) -> bool {
        false
    }

    fn decided(&self, _token: u64) {}

    fn closed(&self, _token: u64) {}
}

impl Program {
    fn fd(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.0.lock().expect("no panic"))
    }
}

impl End {
    fn new(tcp: TcpStream, side: Option<Side>) -> Outcome<Self> {
        let Some(side) = side else { return Ok(Self::Tcp(tcp)) };
        let (local, peer) = (tcp.local_addr()?, tcp.peer_addr()?);
        let program = Arc::new(Program(Mutex::new(Arc::new(tcp.into()))));
        let settings = Arc::new(Settings::from_environment()?);
        let sockets = Sockets::start(settings, Arc::clone(&program) as Arc<dyn DescriptorTable>)?;
        let connection = match side {
            Side::Connecting => sockets.connected(1, local, peer),
            Side::Accepting => sockets.accepted(1, local, peer, false),
        };
        connection.set_no_delay(true);
        Ok(Self::Edge { _sockets: sockets, connection, program })
    }

    fn send(&self, bytes: &[u8]) -> Outcome<()> {
        match self {
            Self::Tcp(tcp) => Ok((&mut &*tcp).write_all(bytes)?),
            Self::Edge { connection, program, .. } => {
                let fd = program.fd();
                let sent =
                    connection.send(fd.as_fd(), &[IoSlice::new(bytes)], SendFlags::default())?;
                assert_eq!(sent, bytes.len(), "it waits until all is written");
                Ok(())
            }
        }
    }

    fn receive(&self, bytes: &mut [u8]) -> Outcome<()> {
        match self {
            Self::Tcp(tcp) => Ok((&mut &*tcp).read_exact(bytes)?),
            Self::Edge { connection, program, .. } => {
                let fd = program.fd();
                let flags = ReceiveFlags { wait_all: true, ..ReceiveFlags::default() };
                let length = bytes.len();
                let received =
                    connection.receive(fd.as_fd(), &mut [IoSliceMut::new(bytes)], flags)?;
                if received < length { Err("the end".into()) } else { Ok(()) }
            }
        }
    }

    /// Returns true if the connection may still move.
    fn is_undecided(&self) -> Outcome<bool> {
        let Self::Edge { connection, .. } = self else { return Ok(false) };
        match connection.route() {
            Route::Undecided => Ok(true),
            Route::Moved => Ok(false),
            Route::Left(reason) => Err(format!("it is left to TCP: {reason}").into()),
        }
    }
}
