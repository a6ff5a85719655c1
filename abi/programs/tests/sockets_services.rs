//! Unmodified servers with protocols other than HTTP. The library for sockets runs on both sides,
//! on one side, and on no side.

use std::sync::atomic::{AtomicU32, Ordering};

use programs::{
    Documents, Loaded, Network, Program, Service, Side, Stage, are_installed, python_client,
    python_store,
};

const SIZES: [usize; 5] = [0, 1, 1 << 10, 1 << 20, 16 << 20];

/// Number of runs of all tests together.
static RUNS: AtomicU32 = AtomicU32::new(0);

/// Runs clients of a service, each with its own instance of the service.
fn with_service(service: Service, loads: &[Loaded], clients: &[Client]) {
    let network = Network::namespaces().unwrap_or(Network::Loopback);
    for &loaded in loads {
        for client in clients {
            if !are_installed(&[service.program(), client.program]) {
                continue;
            }
            println!("{service:?} {} {loaded:?}", client.program);
            let Some(stage) = Stage::new(&network, loaded) else { return };
            let port = stage.free_port();
            let Some(running) = service.start(&stage, port) else { return };
            (client.run)(&stage, port);
            running.stop();
            match service {
                // Do not expect a move: gmond closes the connection right after its reply, possibly
                // before the library has decided whether to move the connection.
                Service::Gmond => stage.expect_seen(),
                _ => stage.expect_path(),
            }
            let runs = RUNS.fetch_add(1, Ordering::Relaxed) + 1;
            println!("figure: runs of services and their clients: {runs}");
        }
    }
}

struct Client {
    program: &'static str,
    run: fn(&Stage<'_>, u16),
}

fn client(stage: &Stage<'_>, program: &str, words: &str) -> String {
    let ended = stage.run(&Program::new(program, words), Side::Client);
    ended.expect_success().to_owned()
}

/// Runs a line of shell, with files as standard input and output.
fn shell(stage: &Stage<'_>, line: &str) {
    let program = Program::new("sh", "-c").argument(&line);
    stage.run(&program, Side::Client).expect_success();
}

const REDIS: [Client; 3] = [
    Client {
        program: "redis-cli",
        run: |stage, port| {
            let documents = Documents::of_sizes(stage, &SIZES);
            let cli = format!("redis-cli -h {} -p {port}", stage.address());
            for document in documents.all() {
                let name = &document.name;
                let from = documents.folder().join(name);
                let to = documents.fetched().join(name);
                shell(stage, &format!("{cli} -x set {name} < {}", from.display()));
                shell(stage, &format!("{cli} --raw get {name} | head -c -1 > {}", to.display()));
            }
            documents.expect_fetched(&"redis-cli");
        },
    },
    Client {
        program: "redis-benchmark",
        run: |stage, port| {
            for pipeline in [1, 16] {
                let words = format!(
                    "-h {} -p {port} -q -n 4000 -c 8 -P {pipeline} -d 1000 -t set,get,lpush,lrange_100",
                    stage.address()
                );
                let said = client(stage, "redis-benchmark", &words);
                assert!(said.matches("requests per second").count() >= 4, "{said}");
            }
        },
    },
    Client {
        program: "python3",
        run: |stage, port| {
            let documents = Documents::of_sizes(stage, &SIZES);
            let ended = stage.run(&python_store(stage, "redis", port, &documents), Side::Client);
            ended.expect_success();
            documents.expect_fetched(&ended);
        },
    },
];

const MEMCACHED: [Client; 3] = [
    Client {
        program: "memccp",
        run: |stage, port| {
            let documents = Documents::of_sizes(stage, &SIZES[1..]);
            let servers = format!("--servers={}:{port}", stage.address());
            for document in documents.all() {
                let from = documents.folder().join(&document.name);
                let to = documents.fetched().join(&document.name);
                client(stage, "memccp", &format!("{servers} {}", from.display()));
                let words = format!("{servers} --file={} {}", to.display(), document.name);
                client(stage, "memccat", &words);
            }
            documents.expect_fetched(&"memccat");
        },
    },
    Client {
        program: "memcslap",
        run: |stage, port| {
            for test in ["set", "get", "mget"] {
                let words = format!(
                    "--servers={}:{port} --concurrency=4 --execute-number=200 --initial-load=200 --test={test}",
                    stage.address()
                );
                client(stage, "memcslap", &words);
            }
        },
    },
    Client {
        program: "python3",
        run: |stage, port| {
            let documents = Documents::of_sizes(stage, &SIZES);
            let asked = python_store(stage, "memcached", port, &documents);
            let ended = stage.run(&asked, Side::Client);
            ended.expect_success();
            documents.expect_fetched(&ended);
        },
    },
];

const IPERF3: [Client; 1] = [Client {
    program: "iperf3",
    run: |stage, port| {
        for kind in ["", "--reverse", "--parallel 4", "--zerocopy"] {
            let words = format!("--client {} --port {port} --bytes 32M {kind}", stage.address());
            let said = client(stage, "iperf3", &words);
            assert!(said.contains("receiver") && said.contains("iperf Done"), "{said}");
        }
    },
}];

const GMOND: [Client; 2] = [
    Client {
        program: "python3",
        run: |stage, port| {
            let gather = python_client(stage, "gather", port).argument(&20);
            stage.run(&gather, Side::Client).expect_success();
        },
    },
    Client {
        program: "curl",
        run: |stage, port| {
            for _ in 0..20 {
                let words = format!("--silent telnet://{}:{port}", stage.address());
                let said = client(stage, "curl", &words);
                assert!(said.contains("</GANGLIA_XML>"), "{said}");
            }
        },
    },
];

#[test]
fn redis_with_the_library_on_both_sides() {
    with_service(Service::Redis, &[Loaded::Neither, Loaded::Both], &REDIS[2..]);
}

#[test]
fn memcached_with_the_library_on_both_sides() {
    with_service(Service::Memcached, &[Loaded::Neither, Loaded::Both], &MEMCACHED[2..]);
}

#[test]
fn gmond_with_the_library_on_both_sides() {
    with_service(Service::Gmond, &[Loaded::Neither, Loaded::Both], &GMOND[..1]);
}

#[test]
#[ignore = "slow: run by `./x acceptance sockets`"]
fn redis() {
    with_service(Service::Redis, &Loaded::ALL, &REDIS);
}

#[test]
#[ignore = "slow: run by `./x acceptance sockets`"]
fn memcached() {
    with_service(Service::Memcached, &Loaded::ALL, &MEMCACHED);
}

#[test]
#[ignore = "slow: run by `./x acceptance sockets`"]
fn iperf3() {
    with_service(Service::Iperf3, &Loaded::ALL, &IPERF3);
}

#[test]
#[ignore = "slow: run by `./x acceptance sockets`"]
fn gmond() {
    with_service(Service::Gmond, &Loaded::ALL, &GMOND);
}
