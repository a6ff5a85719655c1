//! Links with names, a link with a custom driver, and links in wrappers that disturb traffic. The
//! example also prints their statistics.
#![forbid(unsafe_code)]

use std::thread;
use std::time::Duration;

use ethernot::{
    Buffer, Capture, CaptureClock, CongestionAlgorithm, Delay, Endpoint, EndpointBuilder,
    EngineConfig, Error, Fault, FaultConfig, Link, LinkSpec, LinkWrapper, OperationOptions,
    PeerSpec, Polling, RemoteRegion, Rights, SchedulingPolicy, UdpConfig, UdpFeatures, UdpLink,
    UdpPlace,
};

const LIMIT: Option<Duration> = Some(Duration::from_secs(20));

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    // Names of links, in the form in which users pass them to programs.
    for spec in LinkSpec::parse_list("eth0,udp:10.0.0.1,packet:eth1/vlan=100,xdp:eth2:0,shm")? {
        let of = match &spec {
            LinkSpec::Udp { place: UdpPlace::Address { ip, .. }, .. } => ip.to_string(),
            other => other.interface().unwrap_or("no interface").to_owned(),
        };
        println!("{spec} is on {of}");
    }
    let peers = PeerSpec::parse_list("10.0.0.2:7471,02:00:00:00:00:01/7471,any/7471")?;
    println!("peers by name: {peers:?}");

    // Two named links, each with 100 µs of additional latency. The endpoint follows interfaces, so
    // `build` succeeds even if a link cannot be created.
    let wrap: LinkWrapper = Box::new(|_, link| Box::new(Delay::new(link, 100_000)));
    let named: EndpointBuilder = Endpoint::builder();
    let server = named
        .links("udp:127.0.0.1,udp:127.0.0.2")
        .port(0)
        .follow_interfaces(true)
        .shared_memory(false)
        .polling(Polling::ALWAYS)
        .wrap_links(wrap)
        .build()?;
    assert!(server.link_problems().is_empty());

    // A custom link: a UDP link that loses one frame in twenty and writes its traffic to a file for
    // Wireshark.
    let features = UdpFeatures::ALL.segmentation(false);
    let config = UdpConfig::default().features(features);
    let udp = UdpLink::bind("127.0.0.1:0".parse()?, &config)?;
    println!("{:?}, hints: {:?}", udp.features(), udp.hints());
    let faults = FaultConfig::default().seed(1).receive_loss(0.05);
    let faulty: Fault<UdpLink> = Fault::new(udp, faults)?;
    let file = std::env::temp_dir().join(format!("ethernot-links-{}.pcapng", std::process::id()));
    let link: Box<dyn Link> = Box::new(Capture::create(faulty, &file, CaptureClock::Wall)?);
    let engine = EngineConfig::default()
        .congestion(CongestionAlgorithm::Aimd)
        .scheduling(SchedulingPolicy::EarliestDelivery);
    engine.check()?;
    let client = Endpoint::builder()
        .link(link)
        .udp(config)
        .engine(engine)
        .progress_thread(true)
        .shutdown_grace(Duration::from_millis(500))
        .build()?;

    write_once(&server, &client)?;
    // The shortest form: an interface name, and defaults for all other settings.
    println!("{:?}", Endpoint::with_links("lo")?.links()?);
    for (id, address) in client.links()? {
        let statistics = client.link_statistics(id)?.expect("it is there");
        println!("{address}, by UDP {:?}: {statistics:?}", address.to_socket());
    }
    drop(client);
    println!("{} bytes in {}", std::fs::metadata(&file)?.len(), file.display());
    std::fs::remove_file(&file)?;
    Ok(())
}

/// Writes 1 MiB and checks all bytes. The faulty link loses frames, but the operation loses no
/// bytes.
fn write_once(server: &Endpoint, client: &Endpoint) -> Result<(), Error> {
    let memory = Buffer::new(1 << 20);
    let region = server.register(memory.clone(), Rights::REMOTE_WRITE)?;
    let (listener, addresses) = (server.listen(0)?, server.local_addresses()?);
    let offered = region.remote().to_bytes();
    let accepting =
        thread::spawn(move || Ok::<_, Error>(listener.accept(LIMIT)?.accept(&offered)?));
    let connection = client.connect(&*addresses)?;
    let accepted = accepting.join().expect("it does not panic")?;
    let source = Buffer::new(1 << 20);
    source.write(0, &vec![7; 1 << 20]);
    let local = client.register(source, Rights::NONE)?;
    let remote = RemoteRegion::from_bytes(&connection.peer_data())?;
    let none = OperationOptions::NONE;
    connection.write(&local, 0, &remote, 0, 1 << 20, none)?.wait(LIMIT)?;
    assert_eq!(memory.load_u8((1 << 20) - 1), 7);
    let info = connection.info()?.expect("it is open");
    println!("lost: {}", info.paths.iter().map(|path| path.counters.packets_lost).sum::<u64>());
    drop(accepted);
    Ok(())
}
