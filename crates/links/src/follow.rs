//! Keeps the links of an endpoint as its interfaces are.

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

use crate::open::{self, Opener, Place, Raw, find, is_link_local, owner, usable};
use crate::{BindError, LinkProblem, LinkSpec, PeerSpec};

/// What was asked for, and which links have become of it.
#[derive(Debug)]
pub struct NamedLinks {
    opener: Opener,
    wanted: Wanted,
    entries: Mutex<Vec<Entry>>,
    /// What the last look could not do.
    problems: Mutex<Vec<LinkProblem>>,
}

/// What was asked for.
#[derive(Debug)]
pub enum Wanted {
    /// Whatever can be used.
    Usable,
    /// These.
    Named(Vec<LinkSpec>),
}

/// A link of the endpoint that was made from a name.
#[derive(Clone, Debug)]
struct Entry {
    /// Its name; none for one that a peer's address made necessary.
    spec: Option<LinkSpec>,
    link: LinkId,
    place: Place,
    /// Name of the interface.
    interface: Option<String>,
    /// For how many looks the interface has been gone.
    looks_gone: u32,
}

impl NamedLinks {
    /// Makes the links that are wanted, which are to be attached from identifier `first` on.
    ///
    /// # Errors
    /// [`BindError`], one variant for each cause.
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
            entries.push(Entry::new(Some(spec), link, opened.place, &host));
            links.push(opened.link);
        }
        let problems = Mutex::default();
        Ok((Self { opener, wanted, entries: Mutex::new(entries), problems }, links))
    }

    /// Compares what there is with what is wanted: adds links on interfaces that came, replaces
    /// those whose address went, removes those whose interface has been gone for long. `is_tick`:
    /// a while has passed since the last look. Returns whether to look again in a while; what could
    /// not be done is kept for [`NamedLinks::problems`].
    pub fn look(&self, runtime: &Runtime, is_tick: bool) -> bool {
        let mut problems = Vec::new();
        let looked = self.compare(runtime, is_tick, &mut problems);
        let again = looked.unwrap_or_else(|error| {
            // What fails now may work when looked at again.
            problems.push(LinkProblem::new(None, &error));
            true
        });
        self.report(problems);
        again
    }

    /// Returns what keeps the links from being as they should, as of the last look.
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
                    // Its address may be on the way.
                    Err(error) => {
                        problems.push(LinkProblem::new(Some(&spec), &error));
                        again = true;
                    }
                }
            }
        }
        Ok(again)
    }

    /// Adds links that peers at these addresses make necessary, and returns from which of our
    /// addresses the kernel sends to each.
    ///
    /// # Errors
    /// [`BindError`], one variant for each cause.
    pub fn reach(
        &self,
        runtime: &Runtime,
        peers: &[IpAddr],
    ) -> Result<HashMap<IpAddr, IpAddr>, BindError> {
        let mut sources = HashMap::new();
        for &peer in peers {
            // Without a route there is nothing to add; the attempt reports the error.
            let Ok(Some(route)) = route_to(peer) else { continue };
            let Some(source) = route.source else { continue };
            sources.insert(peer, source);
            let mut entries = self.entries();
            let is_there = |entry: &Entry| entry.place.ip == Some(source);
            let is_family =
                |entry: &Entry| entry.place.ip.is_some_and(|ip| ip.is_ipv4() == peer.is_ipv4());
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
            entries.push(Entry::new(None, link, opened.place, &host));
        }
        Ok(sources)
    }

    /// Finds peers on the Ethernets of our raw links but those in `used`: by broadcast those that are
    /// known by port only, and with `by_ip` the stations that have their IP addresses. Asks each
    /// network for at most `limit`.
    ///
    /// # Errors
    /// [`PacketError`], one variant for each cause.
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

    /// Puts a new link in the place of one whose address has gone.
    fn replace(
        &self,
        runtime: &Runtime,
        entry: &mut Entry,
        host: &[Interface],
    ) -> Result<(), BindError> {
        let Some(spec) = entry.spec.clone() else { return Ok(()) };
        let new = self.attach(runtime, &spec, host)?;
        // The new one comes first, so that connections always have one.
        runtime.detach_link(entry.link).map_err(AttachError::from)?;
        *entry = new;
        Ok(())
    }

    fn attach(
        &self,
        runtime: &Runtime,
        spec: &LinkSpec,
        host: &[Interface],
    ) -> Result<Entry, BindError> {
        let opened = self.opener.open(spec, host)?;
        let link = runtime.attach_link(opened.link)?;
        Ok(Entry::new(Some(spec.clone()), link, opened.place, host))
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes the links whose interface has been gone for long, but not the last one.
fn forget(runtime: &Runtime, entries: &mut Vec<Entry>) -> Result<(), BindError> {
    while entries.iter().any(|entry| entry.looks_gone == 0)
        && let Some(index) = entries.iter().position(|entry| entry.looks_gone >= LOOKS_GONE_MAX)
    {
        let entry = entries.swap_remove(index);
        runtime.detach_link(entry.link).map_err(AttachError::from)?;
    }
    Ok(())
}

impl Entry {
    fn new(spec: Option<LinkSpec>, link: LinkId, place: Place, host: &[Interface]) -> Self {
        let interface = host.iter().find(|interface| Some(interface.index) == place.interface);
        let interface = interface.map(|interface| interface.name.clone());
        Self { spec, link, place, interface, looks_gone: 0 }
    }

    fn is_for(&self, spec: &LinkSpec) -> bool {
        self.spec.as_ref() == Some(spec)
    }

    /// Any address of the interface will do.
    fn is_any_address(&self) -> bool {
        use crate::UdpPlace::Interface;
        matches!(
            self.spec,
            Some(LinkSpec::Interface { .. } | LinkSpec::Udp { place: Interface(_), .. })
        )
    }

    /// The interface has addresses, but no longer the one of the link, or it is another interface of
    /// the same name for which that address does not stand.
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
    /// Starts the thread that follows the interfaces. It ends when stopped, or with the endpoint that has the
    /// links.
    ///
    /// # Errors
    /// The error of the system call that failed.
    pub fn start<L: Linked>(linked: Weak<L>) -> io::Result<Self> {
        let watch = InterfaceWatch::open()?;
        let stopper = watch.stopper();
        let _detached: JoinHandle<()> =
            start_thread("ethernot-links", move || follow(&watch, &linked))?;
        Ok(Self { stopper })
    }

    /// Ends it, soon.
    pub fn stop(&self) {
        self.stopper.stop();
    }
}

/// What has links by name: an endpoint of some surface.
pub trait Linked: Send + Sync + 'static {
    /// Returns what drives the links.
    fn runtime(&self) -> &Runtime;

    /// Returns the links; `None` if it has none by name.
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
            // Nothing is heard of interfaces any more.
            Err(error) => {
                return named.report(vec![LinkProblem::new(None, &BindError::Interfaces(error))]);
            }
        }
    }
}

/// Time between looks while something is missing.
const TICK: Duration = Duration::from_secs(1);

/// Ticks after which a link whose interface is gone is removed. Until then its driver says that it
/// is down, and an interface that comes back finds it in place, with all that is known of the path.
const LOOKS_GONE_MAX: u32 = 5;
