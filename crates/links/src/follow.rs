//! Adapts the links of an endpoint when the interfaces of the host change.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use delivery::LinkId;
use link::host::{Interface, InterfaceWatch, WatchStopper, route_to};
use link::packet::{discover, resolve};
use link::{PacketError, start_thread};
use runtime::{AttachError, Runtime};
use wire_edge::PeerAddr;

use crate::error::BindError;
use crate::open::{self, LinkPlace, Opener, Raw, find, is_link_local, owner, usable};
use crate::peers::PeerSpec;
use crate::problem::LinkProblem;
use crate::spec::LinkSpec;

/// The links that a program wants, and the links that were opened for them.
#[derive(Debug)]
pub struct NamedLinks {
    opener: Opener,
    wanted: Wanted,
    entries: Mutex<Vec<FollowedLink>>,
    /// Problems that the last comparison with the interfaces found.
    problems: Mutex<Vec<LinkProblem>>,
}

/// The links that a program wants.
#[derive(Debug)]
pub enum Wanted {
    /// A link on every usable interface.
    Usable,
    /// The links with these names.
    Named(Vec<LinkSpec>),
}

/// A link that was opened for a name, or because of a peer's address.
#[derive(Clone, Debug)]
struct FollowedLink {
    /// The name of the link; `None` for a link that was added because of a peer's address.
    spec: Option<LinkSpec>,
    link: LinkId,
    place: LinkPlace,
    /// Name of the interface.
    interface: Option<String>,
    /// Number of consecutive ticks in which the link's interface was missing. A tick is one second.
    looks_gone: u32,
}

impl NamedLinks {
    /// Opens the wanted links. The caller must attach these links in the order of the result. The
    /// first link must get the identifier `first`, and each further link the next identifier.
    ///
    /// # Errors
    /// Returns [`BindError`]; each variant names one cause.
    pub fn open(
        opener: Opener,
        wanted: Wanted,
        first: usize,
    ) -> Result<(Self, Vec<Box<dyn link::Link>>), BindError> {
        let host = open::host()?;
        let specs = match &wanted {
            Wanted::Usable => usable(&host),
            Wanted::Named(specs) => specs.clone(),
        };
        if specs.is_empty() {
            return Err(BindError::NoUsableInterface);
        }
        let (mut entries, mut links) = (Vec::new(), Vec::new());
        for (index, spec) in specs.into_iter().enumerate() {
            let opened = opener.open(&spec, &host)?;
            let link = LinkId((first + index) as u8);
            entries.push(FollowedLink::new(Some(spec), link, opened.place, &host));
            links.push(opened.link);
        }
        let problems = Mutex::default();
        Ok((Self { opener, wanted, entries: Mutex::new(entries), problems }, links))
    }

    /// Compares the links with the interfaces. Adds links on new interfaces, replaces links whose
    /// address is gone, and removes links whose interface has been gone for some seconds. The
    /// caller sets `is_tick` if a second has passed since the last call with `is_tick` set. Returns
    /// whether the caller must call this function again after a second. After the call,
    /// [`NamedLinks::problems`] returns the problems of this comparison.
    pub fn look(&self, runtime: &Runtime, is_tick: bool) -> bool {
        let mut problems = Vec::new();
        let looked = self.compare(runtime, is_tick, &mut problems);
        let again = looked.unwrap_or_else(|error| {
            // The error may be temporary, so compare again after a second.
            problems.push(LinkProblem::new(None, &error));
            true
        });
        self.report(problems);
        again
    }

    /// Returns the problems of the last comparison with the interfaces.
    pub fn problems(&self) -> Vec<LinkProblem> {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn report(&self, problems: Vec<LinkProblem>) {
        *self.problems.lock().unwrap_or_else(PoisonError::into_inner) = problems;
    }

    fn compare(
        &self,
        runtime: &Runtime,
        is_tick: bool,
        problems: &mut Vec<LinkProblem>,
    ) -> Result<bool, BindError> {
        let host = open::host()?;
        let mut entries = self.entries();
        let mut again = false;
        for entry in entries.iter_mut() {
            let Some(name) = &entry.interface else { continue };
            let Some(interface) = host.iter().find(|interface| interface.name == *name) else {
                entry.looks_gone = entry.looks_gone.saturating_add(u32::from(is_tick));
                again = true;
                continue;
            };
            entry.looks_gone = 0;
            if entry.has_moved(interface) {
                if let Err(error) = self.replace(runtime, entry, &host) {
                    problems.push(LinkProblem::new(entry.spec.as_ref(), &error));
                    again = true;
                }
            } else {
                entry.place.interface = Some(interface.index);
            }
        }
        forget(runtime, &mut entries)?;
        let wanted = match &self.wanted {
            Wanted::Usable => usable(&host),
            Wanted::Named(specs) => specs.clone(),
        };
        for spec in wanted {
            let is_there = entries.iter().any(|entry| entry.is_for(&spec));
            if !is_there && spec.interface().is_none_or(|name| find(name, &host).is_ok()) {
                match self.attach(runtime, &spec, &host) {
                    Ok(entry) => entries.push(entry),
                    // The interface might not have its address yet, so try again after a second.
                    Err(error) => {
                        problems.push(LinkProblem::new(Some(&spec), &error));
                        again = true;
                    }
                }
            }
        }
        Ok(again)
    }

    /// Adds links that are needed to reach peers at these addresses. Returns, for each peer, the
    /// local address from which the kernel sends to that peer.
    ///
    /// # Errors
    /// Returns [`BindError`]; each variant names one cause.
    pub fn reach(
        &self,
        runtime: &Runtime,
        peers: &[IpAddr],
    ) -> Result<HashMap<IpAddr, IpAddr>, BindError> {
        let mut sources = HashMap::new();
        for &peer in peers {
            // If there is no route, no link can be added. The attempt to connect then reports the
            // error.
            let Ok(Some(route)) = route_to(peer) else { continue };
            let Some(source) = route.source else { continue };
            sources.insert(peer, source);
            let mut entries = self.entries();
            let is_there = |entry: &FollowedLink| entry.place.ip == Some(source);
            let is_family = |entry: &FollowedLink| {
                entry.place.ip.is_some_and(|ip| ip.is_ipv4() == peer.is_ipv4())
            };
            if entries.iter().any(is_there) {
                continue;
            }
            let host = open::host()?;
            let interface = owner(source, &host).or(Some(route.interface));
            let is_wanted = match &self.wanted {
                Wanted::Usable => true,
                Wanted::Named(_) => entries
                    .iter()
                    .any(|entry| entry.place.interface == interface && entry.is_any_address()),
            };
            if !is_wanted
                || (matches!(self.wanted, Wanted::Named(_)) && entries.iter().any(is_family))
            {
                continue;
            }
            let scope = if is_link_local(source) { route.interface } else { 0 };
            let opened = self.opener.open_udp(source, scope, None, interface)?;
            let link = runtime.attach_link(opened.link)?;
            entries.push(FollowedLink::new(None, link, opened.place, &host));
        }
        Ok(sources)
    }

    /// Finds peers on the Ethernet of each raw link, except the links in `used`. If only the port
    /// of a peer is known, finds the peer by broadcast. If `by_ip` is true, also finds the stations
    /// of peers whose IP addresses are known. Waits for each answer for at most `limit`. Returns
    /// each link on which it found a peer, with the address of the first peer that it found there.
    ///
    /// # Errors
    /// Returns [`PacketError`] if it found no peer and a search failed; each variant names one
    /// cause.
    pub fn find_stations(
        &self,
        peers: &[PeerSpec],
        used: &[LinkId],
        by_ip: bool,
        limit: Duration,
    ) -> Result<Vec<(LinkId, PeerAddr)>, PacketError> {
        let raw: Vec<_> = {
            let entries = self.entries();
            let free = entries.iter().filter(|entry| !used.contains(&entry.link));
            free.filter_map(|e| Some((e.link, e.interface.clone()?, e.place.raw?))).collect()
        };
        let (mut found, mut refusal) = (Vec::new(), None);
        for (link, interface, Raw { ethertype, vlan }) in raw {
            for peer in peers {
                let asked = match *peer {
                    PeerSpec::AnyStation { port } => {
                        discover(&interface, ethertype, vlan, port, limit)
                            .map(|stations| (stations.first().copied(), port))
                    }
                    PeerSpec::Socket(socket) if by_ip => resolve(&interface, socket.ip(), limit)
                        .map(|station| (Some(station), socket.port())),
                    _ => continue,
                };
                match asked {
                    Ok((Some(station), port)) => {
                        found.push((link, PeerAddr::mac(station, port)));
                        break;
                    }
                    Ok((None, _)) => {}
                    Err(error) => refusal = Some(error),
                }
            }
        }
        match refusal {
            Some(error) if found.is_empty() => Err(error),
            _ => Ok(found),
        }
    }

    /// Opens a new link, which replaces a link whose address is gone.
    fn replace(
        &self,
        runtime: &Runtime,
        entry: &mut FollowedLink,
        host: &[Interface],
    ) -> Result<(), BindError> {
        let Some(spec) = entry.spec.clone() else { return Ok(()) };
        let new = self.attach(runtime, &spec, host)?;
        // Detach the old link only after the new link is attached, so that connections always have
        // a link.
        runtime.detach_link(entry.link).map_err(AttachError::from)?;
        *entry = new;
        Ok(())
    }

    fn attach(
        &self,
        runtime: &Runtime,
        spec: &LinkSpec,
        host: &[Interface],
    ) -> Result<FollowedLink, BindError> {
        let opened = self.opener.open(spec, host)?;
        let link = runtime.attach_link(opened.link)?;
        Ok(FollowedLink::new(Some(spec.clone()), link, opened.place, host))
    }

    fn entries(&self) -> MutexGuard<'_, Vec<FollowedLink>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes links whose interface has been gone for [`LOOKS_GONE_MAX`] seconds. Removes none if no
/// other link has an interface that exists.
fn forget(runtime: &Runtime, entries: &mut Vec<FollowedLink>) -> Result<(), BindError> {
    while entries.iter().any(|entry| entry.looks_gone == 0)
        && let Some(index) = entries.iter().position(|entry| entry.looks_gone >= LOOKS_GONE_MAX)
    {
        let entry = entries.swap_remove(index);
        runtime.detach_link(entry.link).map_err(AttachError::from)?;
    }
    Ok(())
}

impl FollowedLink {
    fn new(spec: Option<LinkSpec>, link: LinkId, place: LinkPlace, host: &[Interface]) -> Self {
        let interface = host.iter().find(|interface| Some(interface.index) == place.interface);
        let interface = interface.map(|interface| interface.name.clone());
        Self { spec, link, place, interface, looks_gone: 0 }
    }

    fn is_for(&self, spec: &LinkSpec) -> bool {
        self.spec.as_ref() == Some(spec)
    }

    /// Returns whether the name of the link permits any address of its interface.
    fn is_any_address(&self) -> bool {
        use crate::spec::UdpPlace::Interface;
        matches!(
            self.spec,
            Some(LinkSpec::Interface { .. } | LinkSpec::Udp { place: Interface(_), .. })
        )
    }

    /// Returns whether the link must be replaced. This is the case if the link may use any address
    /// of its interface, the interface is usable, and one of these conditions holds:
    ///
    /// * The interface has addresses, but the link's address is not among them any more.
    /// * The interface was deleted and created again under the same name, and the link's address is
    ///   link-local.
    fn has_moved(&self, interface: &Interface) -> bool {
        let Some(ip) = self.place.ip else { return false };
        let is_other = self.place.interface != Some(interface.index);
        let has = |ip| interface.addresses.iter().any(|address| address.ip == ip);
        self.is_any_address()
            && interface.is_usable_by_ip()
            && (!has(ip) || (is_other && is_link_local(ip)))
    }
}

/// The thread that follows the interfaces.
#[derive(Debug)]
pub struct Follower {
    stopper: WatchStopper,
}

impl Follower {
    /// Starts the thread that follows the interfaces. The thread ends when it is stopped, or when
    /// the endpoint that owns the links is dropped.
    ///
    /// # Errors
    /// Returns the error of the system call that failed.
    pub fn start<L: Linked>(linked: Weak<L>) -> io::Result<Self> {
        let watch = InterfaceWatch::open()?;
        let stopper = watch.stopper();
        let _detached: JoinHandle<()> =
            start_thread("ethernot-links", move || follow(&watch, &linked))?;
        Ok(Self { stopper })
    }

    /// Makes the thread end soon. Returns without waiting for its end.
    pub fn stop(&self) {
        self.stopper.stop();
    }
}

/// An endpoint with links that were opened by name.
pub trait Linked: Send + Sync + 'static {
    /// Returns the runtime that drives the links.
    fn runtime(&self) -> &Runtime;

    /// Returns the links, or `None` if the endpoint has no links that were opened by name.
    fn named_links(&self) -> Option<&NamedLinks>;
}

fn follow<L: Linked>(watch: &InterfaceWatch, linked: &Weak<L>) {
    let mut again = true;
    loop {
        let waited = watch.wait(again.then_some(TICK));
        let Some(linked) = linked.upgrade() else { return };
        let Some(named) = linked.named_links() else { return };
        match waited {
            Ok(Some(has_changed)) => again = named.look(linked.runtime(), !has_changed),
            Ok(None) => return,
            // The watch has failed, so changes of interfaces are not reported any more.
            Err(error) => {
                return named.report(vec![LinkProblem::new(None, &BindError::Interfaces(error))]);
            }
        }
    }
}

/// Time between comparisons while a wanted link is missing.
const TICK: Duration = Duration::from_secs(1);

/// Seconds after which a link is removed because its interface is gone. During these seconds, the
/// driver reports the link as down. If the interface returns in this time, connections still have
/// their measurements of the link.
const LOOKS_GONE_MAX: u32 = 5;
