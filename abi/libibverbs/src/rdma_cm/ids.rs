//! Ids and event channels (`rdma_cm_id`, `rdma_event_channel`).

use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdma_cm::{EventChannel, Id, PortSpace};
use verbs::{Error, QueuePairType};

use super::addresses::storage;
use super::devices::shared;
use super::event_loop;
use super::events;
use super::layout::{
    NO_GID, ibv_sa_path_rec, rdma_addr, rdma_cm_event, rdma_cm_id, rdma_event_channel,
    rdma_ib_addr, rdma_route,
};
use crate::failure::{invalid, number, pointer, set_errno};
use crate::layout::{Aligned, ibv_qp_init_attr};
use crate::port::mtu_code;
use crate::shell::Shell;

/// An event channel: the C structure, followed by the library's state.
pub(super) type Channel = Shell<rdma_event_channel, Arc<EventChannel>>;

/// An id: the C structure, followed by the library's state.
pub(super) type Named = Shell<rdma_cm_id, Ours>;

/// The library's state of an id.
pub(super) struct Ours {
    pub(super) id: Arc<Id>,
    state: Mutex<Own>,
}

/// The part of an id's state that calls of the program change.
pub(super) struct Own {
    /// Whether calls with this id block until their event has arrived. Such an id has its own
    /// channel.
    pub(super) is_synchronous: bool,
    /// Of a listener: the attributes for the queue pairs of accepted connections. `rdma_create_ep`
    /// stores them.
    pub(super) pair: Option<ibv_qp_init_attr>,
    path: Box<ibv_sa_path_rec>,
    /// Whether the library has created the completion queue for sends. `has_receive_queue` is true
    /// if the library has created the completion queue for receives.
    pub(super) has_send_queue: bool,
    pub(super) has_receive_queue: bool,
}

// SAFETY: the pointers in this structure come from the program. The library uses them only in calls
// of the program.
unsafe impl Send for Own {}

impl Ours {
    pub(super) fn own(&self) -> MutexGuard<'_, Own> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_synchronous(&self) -> bool {
        self.own().is_synchronous
    }
}

/// Returns the library's state of an id. Returns an error if the id is null or misaligned.
///
/// # Safety
/// The id must be null, or this library must have created it. It must not be destroyed while the
/// result is used.
pub(super) unsafe fn ours<'a>(id: *const rdma_cm_id) -> Result<&'a Ours, Error> {
    // If `rdma_create_id` has failed, some programs pass an uninitialised pointer. Reject it at
    // least if it is misaligned, because no id is misaligned.
    if !id.is_aligned() {
        return invalid("the id is misaligned: rdma_create_id did not create it");
    }
    // SAFETY: the caller meets the requirements of this function.
    unsafe { Named::ours(id, "id") }
}

/// Implements `rdma_create_event_channel`.
#[unsafe(export_name = "ethernot_rdma_create_event_channel")]
pub(crate) extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    pointer("rdma_create_event_channel", || {
        // This call must fail if there is no device, because programs use it to find out whether
        // there are devices.
        make_channel()
    })
}

/// Creates an event channel and its C structure.
pub(super) fn make_channel() -> Result<*mut rdma_event_channel, Error> {
    let channel = EventChannel::new(&shared()?.host)?;
    let fd = channel.descriptor().as_raw_fd();
    Ok(Channel::make(rdma_event_channel { fd }, channel))
}

/// Implements `rdma_destroy_event_channel`.
///
/// # Safety
/// The channel must come from [`rdma_create_event_channel`], and no id may use it.
#[unsafe(export_name = "ethernot_rdma_destroy_event_channel")]
pub(crate) unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    if !channel.is_null() {
        event_loop::on_destroy(channel);
        // SAFETY: the caller meets the requirements of this function.
        unsafe { Channel::free(channel) };
    }
}

/// Implements `rdma_create_id`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_rdma_create_id")]
pub(crate) unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    space: c_int,
) -> c_int {
    number("rdma_create_id", || {
        // SAFETY: the caller meets the requirements of this function.
        let made = unsafe { create(channel, context, space, None) }?;
        if id.is_null() {
            return invalid("the pointer for the id is null");
        }
        // SAFETY: the caller meets the requirements of this function.
        unsafe { *id = made };
        Ok(0)
    })
}

/// Creates an id. If `channel` is null, the id gets its own channel, and calls with this id block
/// until their event has arrived.
///
/// # Safety
/// The channel must be null or valid.
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
    // SAFETY: the caller guarantees the channel, or it was created just above.
    let events = unsafe { Channel::ours(channel, "channel") }?;
    let made = Id::new(&shared.host, events, space, service);
    let id = made.inspect_err(|_| {
        if is_synchronous {
            // SAFETY: created just above.
            unsafe { Channel::free(channel) };
        }
    })?;
    Ok(name(&id, channel, context, is_synchronous))
}

/// Creates the C structure of an id.
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

/// Copies the addresses and the device of an id, if they are known, to the C structure of the id.
///
/// # Safety
/// This library must have created the id.
pub(super) unsafe fn refresh(id: *mut rdma_cm_id) -> Result<(), Error> {
    // SAFETY: the caller meets the requirements of this function.
    let ours = unsafe { ours(id) }?;
    // SAFETY: the program must not access the id in another thread during this call.
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

/// Writes the route to the peer to the C structure of an id. A route without a path record has only
/// the GID of the local port, as in the kernel (`ucma_copy_iw_route`).
///
/// # Safety
/// The requirements are those of [`refresh`].
pub(super) unsafe fn show_path(id: *mut rdma_cm_id) -> Result<(), Error> {
    // SAFETY: the caller meets the requirements of this function.
    let ours = unsafe { ours(id) }?;
    let gid = |address: Option<std::net::SocketAddr>| {
        let gid = address.map(|address| verbs::Gid::of(address.ip().to_canonical()));
        Aligned(gid.unwrap_or_default().0)
    };
    let device = ours.id.device();
    if !ours.id.has_path_record() {
        let gids = device.map(|device| device.provider().gids()).unwrap_or_default();
        let sgid = gids.first().map_or(NO_GID, |entry| Aligned(entry.gid.0));
        // SAFETY: the program must not access the id in another thread during this call.
        let route = unsafe { &mut (*id).route };
        (route.path_rec, route.num_paths) = (ptr::null_mut(), 0);
        route.addr.ibaddr = rdma_ib_addr { sgid, dgid: NO_GID, pkey: 0 };
        return Ok(());
    }
    let mtu = device.map_or(1024, |device| device.provider().path_mtu());
    let mut own = ours.own();
    own.path.sgid = gid(ours.id.local());
    own.path.dgid = gid(ours.id.remote());
    own.path.mtu = mtu_code(mtu) as u8;
    let path = &raw mut *own.path;
    // SAFETY: the program must not access the id in another thread during this call.
    let c = unsafe { &mut *id };
    c.route.path_rec = path;
    c.route.num_paths = 1;
    c.route.addr.ibaddr.sgid = own.path.sgid;
    c.route.addr.ibaddr.dgid = own.path.dgid;
    c.route.addr.ibaddr.pkey = DEFAULT_PARTITION.to_be();
    Ok(())
}

/// Implements `rdma_destroy_id`. Blocks until the program has acknowledged every event of the id
/// that the program has read.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_rdma_destroy_id")]
pub(crate) unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    number("rdma_destroy_id", || {
        // SAFETY: the caller meets the requirements of this function.
        unsafe { destroy(id) }?;
        Ok(0)
    })
}

/// Destroys an id.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
pub(super) unsafe fn destroy(id: *mut rdma_cm_id) -> Result<(), Error> {
    // SAFETY: the caller meets the requirements of this function.
    let ours = unsafe { ours(id) }?;
    // SAFETY: the caller meets the requirements of this function.
    unsafe { release_event(id) };
    ours.id.destroy()?;
    let is_synchronous = ours.is_synchronous();
    // SAFETY: the caller meets the requirements of this function.
    let channel = unsafe { (*id).channel };
    // SAFETY: the id is alive, because the call above has checked it. Its queue pair and events are
    // gone. The program must not use an id in another call while it destroys the id.
    unsafe { Named::free(id) };
    if is_synchronous {
        // SAFETY: the channel was created for this id only.
        unsafe { Channel::free(channel) };
    }
    Ok(())
}

/// Acknowledges the event that is stored in the id (`rdma_cm_id::event`), if there is one.
///
/// # Safety
/// This library must have created the id.
pub(super) unsafe fn release_event(id: *mut rdma_cm_id) {
    // SAFETY: the caller meets the requirements of this function.
    let held = unsafe { std::mem::replace(&mut (*id).event, ptr::null_mut()) };
    if !held.is_null() {
        // SAFETY: [`complete`] or `rdma_get_request` stored the event, and it is not acknowledged
        // yet.
        unsafe { events::acknowledge(held) };
    }
}

/// If calls with the id block, waits for the next event of the id. Returns an error if the event
/// reports a failure.
///
/// # Safety
/// This library must have created the id.
pub(super) unsafe fn complete(id: *mut rdma_cm_id) -> Result<(), Error> {
    // SAFETY: the caller meets the requirements of this function.
    if !unsafe { ours(id) }?.is_synchronous() {
        return Ok(());
    }
    // SAFETY: the caller meets the requirements of this function.
    unsafe { release_event(id) };
    // SAFETY: the caller meets the requirements of this function.
    let event: *mut rdma_cm_event = unsafe { events::take((*id).channel) }?;
    // SAFETY: the caller meets the requirements of this function. `take` created the event just
    // above.
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
    Err(Error::System { what: "waiting for the outcome of the call".into(), number })
}

/// Implements `rdma_migrate_id`. Blocks until the program has acknowledged every event of the id
/// that the program has read.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_rdma_migrate_id")]
pub(crate) unsafe extern "C" fn rdma_migrate_id(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    number("rdma_migrate_id", || {
        // SAFETY: the caller meets the requirements of this function.
        unsafe { migrate(id, channel) }?;
        Ok(0)
    })
}

/// Moves an id to another event channel. If `channel` is null, the id gets its own channel, and
/// calls with this id block.
///
/// # Safety
/// The arguments must meet the requirements of the manual page of `rdma_migrate_id`.
pub(super) unsafe fn migrate(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> Result<(), Error> {
    // SAFETY: the caller meets the requirements of this function.
    let ours = unsafe { ours(id) }?;
    let was_synchronous = ours.is_synchronous();
    let is_synchronous = channel.is_null();
    let channel = if is_synchronous { make_channel()? } else { channel };
    if was_synchronous {
        // Acknowledge the event here, because `migrate` below waits until the event is
        // acknowledged, and no other code does this.
        // SAFETY: the caller meets the requirements of this function.
        unsafe { release_event(id) };
    }
    // SAFETY: the caller guarantees the channel, or it was created just above.
    ours.id.migrate(unsafe { Channel::ours(channel, "channel") }?)?;
    ours.own().is_synchronous = is_synchronous;
    // SAFETY: the caller meets the requirements of this function.
    let before = unsafe { std::mem::replace(&mut (*id).channel, channel) };
    if was_synchronous {
        // SAFETY: the channel was created for this id only.
        unsafe { Channel::free(before) };
    }
    Ok(())
}

/// Implements `rdma_get_src_port`. Returns the port in network byte order.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_rdma_get_src_port")]
pub(crate) unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: the caller meets the requirements of this function.
    let port = unsafe { ours(id) }.ok().and_then(|ours| ours.id.local());
    port.map_or(0, |address| address.port().to_be())
}

/// Implements `rdma_get_dst_port`. Returns the port in network byte order.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_rdma_get_dst_port")]
pub(crate) unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: the caller meets the requirements of this function.
    let port = unsafe { ours(id) }.ok().and_then(|ours| ours.id.remote());
    port.map_or(0, |address| address.port().to_be())
}

/// Implements `rdma_set_local_ece`. Ignores the options, because this library has no vendor
/// options.
#[unsafe(export_name = "ethernot_rdma_set_local_ece")]
pub(crate) extern "C" fn rdma_set_local_ece(id: *mut rdma_cm_id, options: *const c_void) -> c_int {
    if id.is_null() || options.is_null() {
        set_errno(libc::EINVAL);
        return -1;
    }
    0
}

/// Implements `rdma_get_remote_ece`. Returns zeros, because this library has no vendor options.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_rdma_get_remote_ece")]
pub(crate) unsafe extern "C" fn rdma_get_remote_ece(
    id: *mut rdma_cm_id,
    options: *mut super::layout::ibv_ece,
) -> c_int {
    number("rdma_get_remote_ece", || {
        if id.is_null() || options.is_null() {
            return invalid("the id or the pointer for the options is null");
        }
        // SAFETY: the caller meets the requirements of this function.
        unsafe {
            *options = super::layout::ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 };
        }
        Ok(0)
    })
}

/// Returns a path record that contains only default values.
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

/// Partition key of the default partition, of which every port is a member.
const DEFAULT_PARTITION: u16 = 0xffff;

/// Values of `IBV_QPT_RC`, `IBV_QPT_UC` and `IBV_QPT_UD`.
pub(super) const TYPE_RELIABLE: c_int = 2;
pub(super) const TYPE_UNRELIABLE: c_int = 3;
pub(super) const TYPE_DATAGRAM: c_int = 4;
