//! The server with ordinary sockets: serves the requests of each connection.

use std::io::{self, BufRead, ErrorKind};
use std::net::{TcpListener, TcpStream};
use std::thread;

use super::event_loop;
use super::wire::Wire;
use super::work::{Exchange, Serving, Style, Wanted};
use crate::cpu;
use crate::process::{Line, print_line};

/// Runs the server process until its standard input ends. For each line of the input, reports the
/// CPU time that the process has used so far.
pub(crate) fn run(serving: Serving) -> Result<(), String> {
    let address = serving.address;
    let listener = TcpListener::bind(address)
        .map_err(|error| format!("listen on {address} for clients: {error}"))?;
    let address = listener
        .local_addr()
        .map_err(|error| format!("read the address of a listener: {error}"))?;
    let style = serving.style;
    let accepting = move || {
        let outcome = match style {
            Style::Events => event_loop::echo(&listener),
            Style::Blocking | Style::Polling => accept(&listener, style),
        };
        if let Err(error) = outcome {
            // Writing fails only if the parent has ended.
            let _ = print_line(&Line::Failed(format!("accept connections: {error}")));
        }
    };
    thread::Builder::new()
        .name("accept".to_string())
        .spawn(accepting)
        .map_err(|error| format!("start a thread that accepts: {error}"))?;
    print_line(&Line::Listening(address))?;
    for line in io::stdin().lock().lines() {
        line.map_err(|error| format!("read from the parent process: {error}"))?;
        let seconds = cpu::process_seconds().map_err(|error| format!("read CPU time: {error}"))?;
        print_line(&Line::CpuSeconds(seconds))?;
    }
    Ok(())
}

fn accept(listener: &TcpListener, style: Style) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept()?;
        thread::Builder::new().spawn(move || {
            // Ignore the error: a client whose connection fails reports the error to its own
            // parent.
            let _ = serve(stream, style);
        })?;
    }
}

/// Serves one connection until the client closes it.
fn serve(stream: TcpStream, style: Style) -> io::Result<()> {
    let mut wire = Wire::new(stream, style)?;
    let mut request = [0; Wanted::BYTES];
    while wire.read_exact(&mut request)? {
        let wanted = Wanted::decoded(&request).ok_or(ErrorKind::InvalidData)?;
        let mut message = vec![0; wanted.message_bytes as usize];
        match wanted.exchange {
            Exchange::Echo => {
                for _ in 0..wanted.count {
                    if !wire.read_exact(&mut message)? {
                        return Ok(());
                    }
                    wire.write_all(&message)?;
                }
            }
            Exchange::Take => {
                let mut buffer = vec![0; message.len().max(RECEIVE_BYTES)];
                take(&mut wire, &mut buffer, wanted)?;
                wire.write_all(&message[..1])?;
            }
            Exchange::Give => {
                for _ in 0..wanted.count {
                    wire.write_all(&message)?;
                }
            }
        }
    }
    Ok(())
}

/// Reads all messages of an exchange. If the exchange has no fixed number of messages, reads to the
/// end of the stream.
fn take(wire: &mut Wire, buffer: &mut [u8], wanted: Wanted) -> io::Result<()> {
    let mut left = wanted.count.saturating_mul(wanted.message_bytes);
    while left > 0 {
        let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        match wire.read(&mut buffer[..most])? {
            0 if wanted.count == Wanted::ENDLESS => return Ok(()),
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            bytes => left -= bytes as u64,
        }
    }
    Ok(())
}

/// Smallest receive buffer, in bytes. The transport `tcp` of `ethernot bench` has the same size.
const RECEIVE_BYTES: usize = 256 << 10;
