//! HTTP servers and clients.

use crate::are_installed;
use crate::network::Side;
use crate::process::{Program, Running};
use crate::sockets::Stage;
use crate::sockets_documents::Documents;

/// A server of static documents.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum HttpServer {
    /// Apache with a process for each connection. The value is the number of processes.
    ApachePrefork(u32),
    /// Apache with one thread per connection.
    ApacheWorker,
    /// Apache with one thread that waits for all connections.
    ApacheEvent,
    /// nginx with two workers.
    Nginx,
    /// Python's `http.server`, with one thread per connection.
    PythonThreads,
    /// Python's `asyncio` streams.
    PythonAsyncio,
    /// Node's `http`.
    Node,
    /// Java's `com.sun.net.httpserver`.
    Java,
}

impl HttpServer {
    /// All servers.
    pub const ALL: [Self; 8] = [
        Self::ApachePrefork(2),
        Self::ApacheWorker,
        Self::ApacheEvent,
        Self::Nginx,
        Self::PythonThreads,
        Self::PythonAsyncio,
        Self::Node,
        Self::Java,
    ];

    /// Returns whether the server is installed; if not, prints the missing program.
    pub fn is_installed(self) -> bool {
        match self {
            Self::ApachePrefork(_) | Self::ApacheWorker | Self::ApacheEvent => {
                are_installed(&["apache2"])
            }
            Self::Nginx => are_installed(&["nginx"]),
            Self::PythonThreads | Self::PythonAsyncio => are_installed(&["python3"]),
            Self::Node => are_installed(&["node"]),
            Self::Java => are_installed(&["javac"]),
        }
    }

    /// Starts the server and waits until it listens on `port`.
    pub fn start(self, stage: &Stage<'_>, documents: &Documents, port: u16) -> Running {
        let mut running = stage.start(&self.program(stage, documents, port), Side::Server);
        running.wait_for_listener(port);
        running
    }

    fn program(self, stage: &Stage<'_>, documents: &Documents, port: u16) -> Program {
        let script = |program: &str, name: &str, text: &str, kind: Option<&str>| {
            let program = Program::new(program, "").argument(&stage.file(name, text).display());
            let program = kind.iter().fold(program, Program::argument);
            let program = program.argument(&stage.address()).argument(&port);
            program.argument(&documents.folder().display())
        };
        let python = include_str!("../clients/sockets_server.py");
        match self {
            Self::ApachePrefork(children) => {
                let limits = format!(
                    "StartServers {children}\nMinSpareServers {children}\n\
                     MaxSpareServers {children}\nServerLimit 64\nMaxRequestWorkers 64\n\
                     KeepAliveTimeout {KEEP_ALIVE_SECONDS}\n"
                );
                apache(stage, documents, port, "prefork", &limits)
            }
            Self::ApacheWorker => apache(stage, documents, port, "worker", THREADS),
            Self::ApacheEvent => apache(stage, documents, port, "event", THREADS),
            Self::Nginx => nginx(stage, documents, port),
            Self::PythonThreads => script(PYTHON, "server.py", python, Some("threads")),
            Self::PythonAsyncio => script(PYTHON, "server.py", python, Some("asyncio")),
            Self::Node => {
                script("node", "server.js", include_str!("../clients/sockets_server.js"), None)
            }
            Self::Java => {
                let text = include_str!("../clients/sockets_server.java");
                script("java", "Serve.java", text, None)
            }
        }
    }
}

/// Returns Apache with a generated configuration instead of the system's.
fn apache(
    stage: &Stage<'_>,
    documents: &Documents,
    port: u16,
    model: &str,
    limits: &str,
) -> Program {
    let folder = stage.folder().display();
    let documents = documents.folder().display();
    let address = stage.address();
    let text = format!(
        "ServerRoot {folder}\nServerName localhost\nPidFile {folder}/apache.pid\n\
         LoadModule mpm_{model}_module {APACHE_MODULES}/mod_mpm_{model}.so\n\
         LoadModule authz_core_module {APACHE_MODULES}/mod_authz_core.so\n\
         Mutex file:{folder}\nListen {address}:{port}\nErrorLog {folder}/apache.log\n\
         LogLevel error\nKeepAlive On\nMaxKeepAliveRequests 0\nEnableSendfile On\n\
         DocumentRoot {documents}\n<Directory {documents}>\nRequire all granted\n</Directory>\n\
         {limits}"
    );
    let file = stage.file("apache.conf", &text);
    Program::new("apache2", "-DFOREGROUND -f").argument(&file.display())
}

/// Returns nginx with a generated configuration instead of the system's.
fn nginx(stage: &Stage<'_>, documents: &Documents, port: u16) -> Program {
    let folder = stage.folder().display();
    let documents = documents.folder().display();
    let address = stage.address();
    let place = |what: &str| format!("    {what}_temp_path {folder}/nginx-{what};\n");
    let places = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map(place).concat();
    let text = format!(
        "daemon off;\nmaster_process on;\nworker_processes 2;\npid {folder}/nginx.pid;\n\
         error_log {folder}/nginx.log error;\nevents {{ worker_connections 512; }}\n\
         http {{\n    access_log off;\n    sendfile on;\n    tcp_nopush on;\n    tcp_nodelay on;\n\
         {places}    server {{ listen {address}:{port}; root {documents}; }}\n}}\n"
    );
    let file = stage.file("nginx.conf", &text);
    Program::new("nginx", "-e")
        .argument(&format!("{folder}/nginx.log"))
        .argument(&"-c")
        .argument(&file.display())
}

/// A client that fetches documents.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum HttpClient {
    /// curl: fetches all documents over one connection.
    Curl,
    /// wrk: fetches each document for one second over four connections.
    Wrk,
    /// ab: fetches each document 40 times with one connection per request, then over four
    /// persistent connections.
    Ab,
    /// Python's `http.client`: fetches all documents over one connection.
    Python,
    /// Two clients of Java's library.
    Java,
    /// Node's `http`: fetches all documents over one connection.
    Node,
}

impl HttpClient {
    /// All clients.
    pub const ALL: [Self; 6] =
        [Self::Curl, Self::Wrk, Self::Ab, Self::Python, Self::Java, Self::Node];

    /// Returns whether the client is installed; if not, prints the missing program.
    pub fn is_installed(self) -> bool {
        are_installed(&[match self {
            Self::Curl => "curl",
            Self::Wrk => "wrk",
            Self::Ab => "ab",
            Self::Python => "python3",
            Self::Java => "javac",
            Self::Node => "node",
        }])
    }

    /// Fetches all documents and compares them with the originals.
    ///
    /// # Panics
    /// Panics if a document differs or is missing.
    #[track_caller]
    pub fn fetch(self, stage: &Stage<'_>, documents: &Documents, port: u16) {
        let script = |program: &str, name: &str, text: &str| {
            let program = Program::new(program, "").argument(&stage.file(name, text).display());
            let program = program.argument(&stage.address()).argument(&port);
            let program = program.argument(&documents.fetched().display());
            let names = documents.all().iter().map(|document| &document.name);
            fetch_with(&names.fold(program, Program::argument), stage, documents);
        };
        match self {
            Self::Curl => {
                let mut program = Program::new("curl", "--silent --show-error --fail");
                for document in documents.all() {
                    let place = documents.fetched().join(&document.name);
                    let address = address_of(stage, port, &document.name);
                    program = program.argument(&"-o").argument(&place.display()).argument(&address);
                }
                fetch_with(&program, stage, documents);
            }
            Self::Wrk => wrk(stage, documents, port),
            Self::Ab => ab(stage, documents, port),
            Self::Python => {
                script(PYTHON, "client.py", include_str!("../clients/sockets_client.py"));
            }
            Self::Java => {
                script("java", "Fetch.java", include_str!("../clients/sockets_client.java"));
            }
            Self::Node => script("node", "client.js", include_str!("../clients/sockets_client.js")),
        }
    }
}

#[track_caller]
fn fetch_with(program: &Program, stage: &Stage<'_>, documents: &Documents) {
    let ended = stage.run(program, Side::Client);
    ended.expect_success();
    documents.expect_fetched(&ended);
}

#[track_caller]
fn wrk(stage: &Stage<'_>, documents: &Documents, port: u16) {
    let script = stage.file("compare.lua", include_str!("../clients/sockets_wrk.lua"));
    for document in documents.all() {
        let program =
            Program::new("wrk", "--threads 1 --connections 4 --duration 1s --timeout 30s");
        let program = program.argument(&"--script").argument(&script.display());
        let program = program.argument(&address_of(stage, port, &document.name));
        let program = program.argument(&documents.folder().join(&document.name).display());
        let ended = stage.run(&program, Side::Client);
        let said = ended.expect_success();
        // `wrk` runs for a second, in which it may receive no large document. So for large
        // documents, check only that no document is wrong.
        let is_right = said.contains(" wrong 0 failed 0") && !said.contains("right 0 ");
        assert!(is_right || document.bytes.len() >= LARGE && said.contains(" wrong 0 "), "{ended}");
    }
}

#[track_caller]
fn ab(stage: &Stage<'_>, documents: &Documents, port: u16) {
    for document in documents.all() {
        let count = if document.bytes.len() >= LARGE { 4 } else { 40 };
        for kept in ["-q", "-k"] {
            let program = Program::new("ab", &format!("-q -n {count} -c 4 -s 30 {kept}"));
            let program = program.argument(&address_of(stage, port, &document.name));
            let ended = stage.run(&program, Side::Client);
            let said = ended.expect_success();
            let number = |name: &str| {
                let line = said.lines().find_map(|line| line.strip_prefix(name));
                line.and_then(|rest| rest.split_whitespace().next()?.parse::<usize>().ok())
            };
            assert_eq!(number("Complete requests:"), Some(count), "{ended}");
            assert_eq!(number("Failed requests:"), Some(0), "{ended}");
            let bytes = document.bytes.len() * count;
            assert_eq!(number("HTML transferred:"), Some(bytes), "{ended}");
        }
    }
}

fn address_of(stage: &Stage<'_>, port: u16, name: &str) -> String {
    format!("http://{}:{port}/{name}", stage.address())
}

/// The system's Python. Another Python may be in a folder that other users cannot read.
pub(crate) const PYTHON: &str = "/usr/bin/python3";

const APACHE_MODULES: &str = "/usr/lib/apache2/modules";

/// Seconds for which a child of Apache keeps an idle connection: longer than any test. Apache
/// starts its children one after the other, so connections of `ab` may be idle until a child serves
/// them. If Apache closed such a connection, `ab` would count a failed request.
const KEEP_ALIVE_SECONDS: u32 = 60;

/// Apache's limits: two processes with eight threads each.
const THREADS: &str = "StartServers 2\nServerLimit 2\nThreadsPerChild 8\nMaxRequestWorkers 16\n\
    MinSpareThreads 8\nMaxSpareThreads 16\n";

/// Size of a large document in bytes. Only a few large documents are fetched.
const LARGE: usize = 1 << 20;
