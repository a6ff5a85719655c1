//! Servers that reload their configuration or save their data while clients use them, and many
//! processes that connect at the same time. No request may be lost.
#![expect(clippy::disallowed_methods, reason = "a server is renewed in the midst of what it does")]

use std::process::Command;
use std::thread;
use std::time::Duration;

use programs::{
    Documents, HttpClient, HttpServer, Loaded, Network, Program, Running, Service, Side, Stage,
    WARM_UPS_MS, are_installed, python_client,
};

/// Sends a signal to the first process of a server only.
fn signal_first(running: &Running, name: &str) {
    let kill = Command::new("kill").args([&format!("-{name}"), &running.id().to_string()]).status();
    assert!(kill.expect("kill runs").success());
}

#[test]
fn nginx_is_reloaded_under_load() {
    for loaded in [Loaded::Neither, Loaded::Both] {
        println!("{loaded:?}");
        if reload_nginx(loaded).is_none() {
            return;
        }
    }
}

#[test]
#[ignore = "slow: run by `./x acceptance sockets`"]
fn nginx_is_reloaded_under_load_again_and_again() {
    for run in 1..=20 {
        if reload_nginx(Loaded::Both).is_none() {
            return;
        }
        println!("figure: reloads of nginx of which every answer is whole: {}", run * RELOADS);
    }
}

/// Reloads nginx while clients fetch documents: every response is complete.
#[track_caller]
fn reload_nginx(loaded: Loaded) -> Option<()> {
    if !are_installed(&["nginx", "ab", "curl"]) {
        return None;
    }
    let stage = Stage::new(&Network::Loopback, loaded)?;
    let documents = Documents::of_sizes(&stage, &[1 << 10, 16 << 20]);
    let port = stage.free_port();
    let running = HttpServer::Nginx.start(&stage, &documents, port);
    let address = format!("http://{}:{port}/", stage.address());
    // Start a slow fetch, which lasts longer than the reloads. nginx must not end the worker that
    // serves this fetch before the fetch has ended.
    let place = documents.fetched().join("size-16777216");
    let slow = Program::new("curl", "--silent --show-error --fail --limit-rate 6M -o");
    let slow = slow.argument(&place.display()).argument(&format!("{address}size-16777216"));
    let slow = stage.start(&slow, Side::Client);
    let many = Program::new("ab", "-q -n 2000 -c 4").argument(&format!("{address}size-1024"));
    let many = stage.start(&many, Side::Client);
    for _ in 0..RELOADS {
        thread::sleep(Duration::from_millis(200));
        signal_first(&running, "HUP");
    }
    let many = many.finish();
    let said = many.expect_success();
    assert!(said.contains("Failed requests:        0"), "{loaded:?}: {many}");
    slow.finish().expect_success();
    let whole = std::fs::read(place).expect("what was fetched");
    assert!(whole == documents.all()[1].bytes, "{loaded:?}: {} bytes", whole.len());
    running.stop();
    stage.expect_path();
    Some(())
}

#[test]
#[ignore = "slow: run by `./x acceptance sockets`"]
fn storms_of_short_connections() {
    for storm in 1..=10 {
        if !are_installed(&["nginx", "ab"]) {
            return;
        }
        let Some(stage) = Stage::new(&Network::Loopback, Loaded::Both) else { return };
        let documents = Documents::of_sizes(&stage, &[1 << 10]);
        let port = stage.free_port();
        let running = HttpServer::Nginx.start(&stage, &documents, port);
        // If a connection gets no response, the run ends after 30 s.
        let many = Program::new("ab", "-q -n 10000 -c 50 -s 30");
        let many = many.argument(&format!("http://{}:{port}/size-1024", stage.address()));
        let many = stage.run(&many, Side::Client);
        let said = many.expect_success();
        for wanted in ["Complete requests:      10000", "Failed requests:        0"] {
            assert!(said.contains(wanted), "{many}");
        }
        running.stop();
        stage.expect_path();
        let moved = stage.counters(Side::Client).moved;
        println!("storm {storm}: {moved} have moved, {}", requests_per_second(said));
        println!("figure: storms of which every answer is whole: {storm}");
    }
}

fn requests_per_second(said: &str) -> &str {
    said.lines().find(|line| line.starts_with("Requests per second:")).unwrap_or_default()
}

/// Number of reloads of one server.
const RELOADS: u32 = 5;

#[test]
fn redis_saves_under_load() {
    if !are_installed(&["redis-server", "redis-cli", "python3"]) {
        return;
    }
    for loaded in [Loaded::Neither, Loaded::Both] {
        // A save forks, and connections that have not moved yet stay on TCP then. On a busy host
        // they move late.
        let has_path = WARM_UPS_MS.into_iter().any(|warm_ms| {
            // Without redis, the path does not matter.
            save_redis(loaded, Duration::from_millis(warm_ms.into())).unwrap_or(true)
        });
        assert!(has_path, "{loaded:?}: all connections stayed on TCP");
    }
}

/// Lets redis save three times while clients store and read values, after this time. Returns
/// whether connections took the expected path, or `None` if redis cannot run here.
#[track_caller]
fn save_redis(loaded: Loaded, warm: Duration) -> Option<bool> {
    let stage = Stage::new(&Network::Loopback, loaded)?;
    let port = stage.free_port();
    let running = Service::Redis.start(&stage, port)?;
    let seconds = warm.as_secs() + 2;
    let verify = python_client(&stage, "verify", port).argument(&seconds);
    let clients = [(); 2].map(|()| stage.start(&verify, Side::Client));
    let ask = |what: &str| {
        let words = format!("-h {} -p {port} {what}", stage.address());
        stage.run(&Program::new("redis-cli", &words), Side::Client).expect_success().to_owned()
    };
    thread::sleep(warm);
    for _ in 0..3 {
        thread::sleep(Duration::from_millis(300));
        // Ignore the answer: if the server is already saving, it refuses the request.
        ask("bgsave");
    }
    for client in clients {
        let ended = client.finish();
        assert!(ended.expect_success().contains("turns"), "{ended}");
    }
    let said = ask("info persistence");
    assert!(said.contains("rdb_last_bgsave_status:ok"), "{said}");
    running.stop();
    Some(stage.has_path())
}

#[test]
fn eight_children_serve_sixteen_clients() {
    if !HttpServer::ApachePrefork(8).is_installed() || !are_installed(&["ab", "python3"]) {
        return;
    }
    for loaded in [Loaded::Neither, Loaded::Both] {
        let Some(stage) = Stage::new(&Network::Loopback, loaded) else { return };
        let documents = Documents::of_sizes(&stage, &[1, 1 << 10, 1 << 20]);
        let port = stage.free_port();
        let running = HttpServer::ApachePrefork(8).start(&stage, &documents, port);
        let address = format!("http://{}:{port}/size-1048576", stage.address());
        let many = Program::new("ab", "-q -k -n 200 -c 16").argument(&address);
        let many = stage.start(&many, Side::Client);
        for _ in 0..3 {
            HttpClient::Python.fetch(&stage, &documents, port);
        }
        println!("{loaded:?}");
        let many = many.finish();
        let said = many.expect_success();
        for wanted in ["Complete requests:      200", "Failed requests:        0"] {
            assert!(said.contains(wanted), "{loaded:?}: {many}");
        }
        running.stop();
        stage.expect_path();
    }
}

#[test]
fn java_talks_to_java() {
    if !HttpServer::Java.is_installed() {
        return;
    }
    for loaded in [Loaded::Neither, Loaded::Both] {
        let Some(stage) = Stage::new(&Network::Loopback, loaded) else { return };
        let documents = Documents::of_sizes(&stage, &[0, 1, 1 << 10, 1 << 20, 16 << 20]);
        let port = stage.free_port();
        let running = HttpServer::Java.start(&stage, &documents, port);
        HttpClient::Java.fetch(&stage, &documents, port);
        running.stop();
        stage.expect_path();
    }
}
