//! fio's `rdma` engine: RDMA writes and reads, and messages whose bytes are verified.

use programs::{Network, Program, Running, Side, are_installed, expect_both};

/// Returns a job that runs as a thread, because a job that runs as a process would outlive a failed
/// test.
fn job(network: &Network, port: u16, rest: &str) -> Program {
    let words = format!(
        "--thread --verify_state_save=0 --name=job --ioengine=rdma --hostname={} --port={port} --bs=16k --size=4m {rest}",
        network.server_address()
    );
    println!("fio {rest}");
    Program::new("fio", &words)
}

/// Starts a job that receives.
fn receiver(network: &Network, port: u16, rest: &str) -> Running {
    let job = job(network, port, &format!("--rw=read --verb=recv --iodepth=32 {rest}"));
    let mut running = job.start(network, Side::Server);
    running.wait_for_manager_port(port);
    running
}

/// Returns a job that sends.
fn sender(network: &Network, port: u16, rest: &str) -> Program {
    job(network, port, &format!("--rw=write --iodepth=8 {rest}"))
}

fn networks() -> impl Iterator<Item = Network> {
    std::iter::once(Network::Loopback).chain(Network::namespaces())
}

#[test]
fn fio_writes_and_reads_memory() {
    if !are_installed(&["fio"]) {
        return;
    }
    for network in networks() {
        for verb in ["write", "read"] {
            let server = receiver(&network, 24_100, "");
            let client = sender(&network, 24_100, &format!("--verb={verb}"));
            let client = client.run(&network, Side::Client);
            let ended = [server.finish(), client];
            expect_both(&ended);
            // All 4 MiB were transferred, in blocks of 16 KiB.
            assert!(ended[1].output.contains("issued rwts: total=0,256,0,0"), "{}", ended[1]);
        }
    }
}

#[test]
fn fio_verifies_messages() {
    if !are_installed(&["fio"]) {
        return;
    }
    for network in networks() {
        let server = receiver(&network, 24_110, "--verify=crc32c");
        let client = sender(&network, 24_110, "--verb=send --verify=crc32c --do_verify=0");
        let client = client.run(&network, Side::Client);
        let ended = [server.finish(), client];
        expect_both(&ended);
        assert!(ended[0].output.contains("issued rwts: total=256,0,0,0"), "{}", ended[0]);
        // Send bytes that do not match, to show that the verification reports wrong bytes.
        let server = receiver(&network, 24_111, "--verify=crc32c");
        let client = sender(&network, 24_111, "--verb=send").start(&network, Side::Client);
        let receiver = server.finish();
        assert!(receiver.output.contains("verify: bad"), "{receiver}");
        // The sender waits forever for the failed work requests, so kill it.
        drop(client);
    }
}
