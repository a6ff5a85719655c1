//! Ids and channels, as programs know them.

use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdma_cm::{EventChannel, Id, PortSpace};
use verbs::{Error, QueuePairType};

use super::addresses::storage;
use super::devices::shared;
use super::events;
use super::layout::{
    NO_GID, ibv_sa_path_rec, rdma_addr, rdma_cm_event, rdma_cm_id, rdma_event_channel,
    rdma_ib_addr, rdma_route,
};
use crate::failure::{invalid, number, pointer, set_errno};
use crate::layout::{Aligned, ibv_qp_init_attr};
use crate::port::mtu_code;
use crate::shell::Shell;

/// A channel, and what is ours of it.
pub(super) type Channel = Shell<rdma_event_channel, Arc<EventChannel>>;

/// An id, and what is ours of it.
pub(super) type Named = Shell<rdma_cm_id, Ours>;

/// What is ours of an id.
pub(super) struct Ours {
    pub(super) id: Arc<Id>,
    state: Mutex<Own>,
}

/// What a program does not see of an id.
pub(super) struct Own {
    /// Its program waits for each event within the call; the channel is its own.
    pub(super) is_synchronous: bool,
    /// How queue pairs of its connections are made.
    pub(super) pair: Option<ibv_qp_init_attr>,
    path: Box<ibv_sa_path_rec>,
    /// The queues of completions are the id's.
    pub(super) has_send_queue: bool,
    pub(super) has_receive_queue: bool,
}

// SAFETY: the pointers in it are those that a program has given, and are only passed on for it.
unsafe impl Send for Own {}

impl Ours {
    pub(super) fn own(&self) -> MutexGuard<'_, Own> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_synchronous(&self) -> bool {
        self.own().is_synchronous
    }
}

/// What is ours of an id.
///
/// # Safety
/// The id is null, or was made here and is not destroyed while what is returned is used.
pub(super) unsafe fn ours<'a>(id: *const rdma_cm_id) -> Result<&'a Ours, Error> {
    // Some programs go on with an id that they never got.
    if !id.is_aligned() {
        return invalid("that is no id");
    }
    // SAFETY: as the caller says.
    unsafe { Named::ours(id, "id") }
}

/// `rdma_create_event_channel`.
#[unsafe(export_name = "ethernot_rdma_create_event_channel")]
pub(crate) extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    pointer("rdma_create_event_channel", || {
        // Without a device there is nothing that could happen: programs look for that here.
        make_channel()
    })
}

/// A channel, as programs know it.
pub(super) fn make_channel() -> Result<*mut rdma_event_channel, Error> {
    let channel = EventChannel::new(&shared()?.host)?;
    let fd = channel.descriptor().as_raw_fd();
    Ok(Channel::make(rdma_event_channel { fd }, channel))
}

/// `rdma_destroy_event_channel`.
///
/// # Safety
/// The channel is from [`rdma_create_event_channel`], and no id has it.
#[unsafe(export_name = "ethernot_rdma_destroy_event_channel")]
pub(crate) unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    if !channel.is_null() {
        // SAFETY: as the caller says.
        unsafe { Channel::free(channel) };
    }
}

/// `rdma_create_id`.
///
/// # Safety
/// As the manual page says.
#[unsafe(export_name = "ethernot_rdma_create_id")]
pub(crate) unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    space: c_int,
) -> c_int {
    number("rdma_create_id", || {
        // SAFETY: as the caller says.
        let made = unsafe { create(channel, context, space, None) }?;
        if id.is_null() {
            return invalid("there is no place for the id");
        }
        // SAFETY: as the caller says.
        unsafe { *id = made };
        Ok(0)
    })
}

/// Makes an id; without a channel it has its own, and its program waits for each event.
///
/// # Safety
/// The channel is null, or there.
pub(super) unsafe fn create(
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    space: c_int,
    service: Option<c_int>,
) -> Result<*mut rdma_cm_id, Error> {
    let shared = shared()?;
    let space = u16::try_from(space).ok().and_then(PortSpace::of_number);
    let Some(space) = space else { return invalid("no such port space") };
    let service = match service {
        None => None,
        Some(TYPE_RELIABLE) => Some(QueuePairType::Reliable),
        Some(TYPE_UNRELIABLE) => Some(QueuePairType::Unreliable),
        Some(TYPE_DATAGRAM) => Some(QueuePairType::Datagram),
        Some(_) => return invalid("no such type of queue pairs"),
    };
    let is_synchronous = channel.is_null();
    let channel = if is_synchronous { make_channel()? } else { channel };
    // SAFETY: as the caller says, or just made.
    let events = unsafe { Channel::ours(channel, "channel") }?;
    let made = Id::new(&shared.host, events, space, service);
    let id = made.inspect_err(|_| {
        if is_synchronous {
            // SAFETY: it was just made.
            unsafe { Channel::free(channel) };
        }
    })?;
    Ok(name(&id, channel, context, is_synchronous))
}

/// An id, as programs know it.
pub(super) fn name(
    id: &Arc<Id>,
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    is_synchronous: bool,
) -> *mut rdma_cm_id {
    let service = match id.service() {
        QueuePairType::Reliable => TYPE_RELIABLE,
        QueuePairType::Unreliable => TYPE_UNRELIABLE,
        QueuePairType::Datagram => TYPE_DATAGRAM,
    };
    let none = rdma_ib_addr { sgid: NO_GID, dgid: NO_GID, pkey: 0 };
    let addr = rdma_addr { src_addr: storage(None), dst_addr: storage(None), ibaddr: none };
    let c = rdma_cm_id {
        verbs: ptr::null_mut(),
        channel,
        context,
        qp: ptr::null_mut(),
        route: rdma_route { addr, path_rec: ptr::null_mut(), num_paths: 0 },
        ps: id.space() as c_int,
        port_num: 0,
        event: ptr::null_mut(),
        send_cq_channel: ptr::null_mut(),
        send_cq: ptr::null_mut(),
        recv_cq_channel: ptr::null_mut(),
        recv_cq: ptr::null_mut(),
        srq: ptr::null_mut(),
        pd: ptr::null_mut(),
        qp_type: service,
    };
    let own = Own {
        is_synchronous,
        pair: None,
        path: Box::new(path()),
        has_send_queue: false,
        has_receive_queue: false,
    };
    let made = Named::make(c, Ours { id: Arc::clone(id), state: Mutex::new(own) });
    id.user.store(made.expose_provenance(), Ordering::Release);
    made
}

/// Shows the program what is known of an id so far.
///
/// # Safety
/// The id is one that was made here.
pub(super) unsafe fn refresh(id: *mut rdma_cm_id) -> Result<(), Error> {
    // SAFETY: as the caller says.
    let ours = unsafe { ours(id) }?;
    // SAFETY: the program does not use an id of which it takes news elsewhere.
    let c = unsafe { &mut *id };
    c.route.addr.src_addr = storage(ours.id.local());
    if let Some(remote) = ours.id.remote() {
        c.route.addr.dst_addr = storage(Some(remote));
    }
    let Some(device) = ours.id.device() else { return Ok(()) };
    if c.verbs.is_null() {
        let (context, domain) = shared()?.open(&device)?;
        c.verbs = context;
        if c.pd.is_null() {
            c.pd = domain;
        }
        c.port_num = 1;
    }
    Ok(())
}

/// Shows the program the route to the peer.
///
/// # Safety
/// As for [`refresh`].
pub(super) unsafe fn show_path(id: *mut rdma_cm_id) -> Result<(), Error> {
    // SAFETY: as the caller says.
    let ours = unsafe { ours(id) }?;
    let gid = |address: Option<std::net::SocketAddr>| {
        let gid = address.map(|address| verbs::Gid::of(address.ip().to_canonical()));
        Aligned(gid.unwrap_or_default().0)
    };
    let mtu = ours.id.device().map_or(1024, |device| device.provider().path_mtu());
    let mut own = ours.own();
    own.path.sgid = gid(ours.id.local());
    own.path.dgid = gid(ours.id.remote());
    own.path.mtu = mtu_code(mtu) as u8;
    let path = &raw mut *own.path;
    // SAFETY: as for `refresh`.
    let c = unsafe { &mut *id };
    c.route.path_rec = path;
    c.route.num_paths = 1;
    c.route.addr.ibaddr.sgid = own.path.sgid;
    c.route.addr.ibaddr.dgid = own.path.dgid;
    c.route.addr.ibaddr.pkey = DEFAULT_PARTITION.to_be();
    Ok(())
}

/// `rdma_destroy_id`. Waits until all events of it that were taken are acknowledged.
///
/// # Safety
/// As the manual page says.
#[unsafe(export_name = "ethernot_rdma_destroy_id")]
pub(crate) unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    number("rdma_destroy_id", || {
        // SAFETY: as the caller says.
        unsafe { destroy(id) }?;
        Ok(0)
    })
}

/// Destroys an id.
///
/// # Safety
/// As the manual page says.
pub(super) unsafe fn destroy(id: *mut rdma_cm_id) -> Result<(), Error> {
    // SAFETY: as the caller says.
    let ours = unsafe { ours(id) }?;
    // SAFETY: as the caller says.
    unsafe { release_event(id) };
    ours.id.destroy()?;
    let is_synchronous = ours.is_synchronous();
    // SAFETY: as the caller says.
    let channel = unsafe { (*id).channel };
    // SAFETY: the id was found alive above, its queue pair and events are gone, and the program makes no
    // other call with an id that it destroys.
    unsafe { Named::free(id) };
    if is_synchronous {
        // SAFETY: it was the id's own.
        unsafe { Channel::free(channel) };
    }
    Ok(())
}

/// Acknowledges the event that an id holds for a program that waits.
///
/// # Safety
/// The id is one that was made here.
pub(super) unsafe fn release_event(id: *mut rdma_cm_id) {
    // SAFETY: as the caller says.
    let held = unsafe { std::mem::replace(&mut (*id).event, ptr::null_mut()) };
    if !held.is_null() {
        // SAFETY: it was taken for the id.
        unsafe { events::acknowledge(held) };
    }
}

/// Waits for the next event of an id whose program waits, and returns its outcome; does nothing for others.
///
/// # Safety
/// The id is one that was made here.
pub(super) unsafe fn complete(id: *mut rdma_cm_id) -> Result<(), Error> {
    // SAFETY: as the caller says.
    if !unsafe { ours(id) }?.is_synchronous() {
        return Ok(());
    }
    // SAFETY: as the caller says.
    unsafe { release_event(id) };
    // SAFETY: as the caller says.
    let event: *mut rdma_cm_event = unsafe { events::take((*id).channel) }?;
    // SAFETY: as the caller says; the event was just made.
    let (status, kind) = unsafe {
        (*id).event = event;
        ((*event).status, (*event).event)
    };
    if status == 0 {
        return Ok(());
    }
    let number = match kind {
        events::REJECTED => libc::ECONNREFUSED,
        _ => status.abs(),
    };
    Err(Error::System { what: "what was asked for failed".into(), number })
}

/// `rdma_migrate_id`. Waits until the events that were taken are acknowledged.
///
/// # Safety
/// As the manual page says.
#[unsafe(export_name = "ethernot_rdma_migrate_id")]
pub(crate) unsafe extern "C" fn rdma_migrate_id(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    number("rdma_migrate_id", || {
        // SAFETY: as the caller says.
        unsafe { migrate(id, channel) }?;
        Ok(0)
    })
}

/// Has the events of an id come by another channel; without one it has its own from now on.
///
/// # Safety
/// As the manual page says.
pub(super) unsafe fn migrate(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> Result<(), Error> {
    // SAFETY: as the caller says.
    let ours = unsafe { ours(id) }?;
    let was_synchronous = ours.is_synchronous();
    let is_synchronous = channel.is_null();
    let channel = if is_synchronous { make_channel()? } else { channel };
    if was_synchronous {
        // No other thread could acknowledge it.
        // SAFETY: as the caller says.
        unsafe { release_event(id) };
    }
    // SAFETY: as the caller says, or just made.
    ours.id.migrate(unsafe { Channel::ours(channel, "channel") }?)?;
    ours.own().is_synchronous = is_synchronous;
    // SAFETY: as the caller says.
    let before = unsafe { std::mem::replace(&mut (*id).channel, channel) };
    if was_synchronous {
        // SAFETY: it was the id's own.
        unsafe { Channel::free(before) };
    }
    Ok(())
}

/// `rdma_get_src_port`, in network byte order.
///
/// # Safety
/// As the manual page says.
#[unsafe(export_name = "ethernot_rdma_get_src_port")]
pub(crate) unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: as the caller says.
    let port = unsafe { ours(id) }.ok().and_then(|ours| ours.id.local());
    port.map_or(0, |address| address.port().to_be())
}

/// `rdma_get_dst_port`, in network byte order.
///
/// # Safety
/// As the manual page says.
#[unsafe(export_name = "ethernot_rdma_get_dst_port")]
pub(crate) unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: as the caller says.
    let port = unsafe { ours(id) }.ok().and_then(|ours| ours.id.remote());
    port.map_or(0, |address| address.port().to_be())
}

/// `rdma_set_local_ece`: there are no options of vendors.
#[unsafe(export_name = "ethernot_rdma_set_local_ece")]
pub(crate) extern "C" fn rdma_set_local_ece(id: *mut rdma_cm_id, options: *const c_void) -> c_int {
    if id.is_null() || options.is_null() {
        set_errno(libc::EINVAL);
        return -1;
    }
    0
}

/// `rdma_get_remote_ece`: there are none.
///
/// # Safety
/// As the manual page says.
#[unsafe(export_name = "ethernot_rdma_get_remote_ece")]
pub(crate) unsafe extern "C" fn rdma_get_remote_ece(
    id: *mut rdma_cm_id,
    options: *mut super::layout::ibv_ece,
) -> c_int {
    number("rdma_get_remote_ece", || {
        if id.is_null() || options.is_null() {
            return invalid("there is no id, or no place for the event");
        }
        // SAFETY: as the caller says.
        unsafe {
            *options = super::layout::ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 };
        }
        Ok(0)
    })
}

/// A way of which nothing is known yet.
fn path() -> ibv_sa_path_rec {
    ibv_sa_path_rec {
        dgid: NO_GID,
        sgid: NO_GID,
        dlid: 0,
        slid: 0,
        raw_traffic: 0,
        flow_label: 0,
        hop_limit: 64,
        traffic_class: 0,
        reversible: 1,
        numb_path: 1,
        pkey: DEFAULT_PARTITION.to_be(),
        sl: 0,
        mtu_selector: 2,
        mtu: 3,
        rate_selector: 2,
        rate: 3,
        packet_life_time_selector: 2,
        packet_life_time: 0,
        preference: 0,
    }
}

/// The partition that everybody is in.
const DEFAULT_PARTITION: u16 = 0xffff;

/// `IBV_QPT_RC`, `IBV_QPT_UC` and `IBV_QPT_UD`.
pub(super) const TYPE_RELIABLE: c_int = 2;
pub(super) const TYPE_UNRELIABLE: c_int = 3;
pub(super) const TYPE_DATAGRAM: c_int = 4;
