//! The devices that ids use. Each device is opened once and stays open.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rdma_cm::{ManagedDevice, ManagedHost};
use verbs::{Device, Error};

use crate::device;
use crate::failure::pointer;
use crate::layout::{ibv_context, ibv_pd};
use crate::memory;

/// State that all ids of a process share. A forked child creates its own state.
pub(super) struct Shared {
    process: u32,
    pub(super) host: Arc<ManagedHost>,
    slots: Vec<Slot>,
}

struct Slot {
    managed: ManagedDevice,
    context: *mut ibv_context,
    /// Address of the protection domain for those ids for which the program passes no domain. 0
    /// until an id needs this domain.
    domain: Mutex<usize>,
}

static SHARED: AtomicPtr<Shared> = AtomicPtr::new(ptr::null_mut());

/// Returns the state that all ids of this process share. The library never frees this state. In
/// particular, a forked child must not free the state of its parent, because a thread of the parent
/// may have been using it during the fork.
pub(super) fn shared() -> Result<&'static Shared, Error> {
    let process = std::process::id();
    let known = SHARED.load(Ordering::Acquire);
    // SAFETY: the shared state is never freed.
    if let Some(shared) = unsafe { known.as_ref() }
        && shared.process == process
    {
        return Ok(shared);
    }
    let mut slots = Vec::new();
    for (c, managed) in device::all()? {
        // SAFETY: the device is from the list.
        let context = unsafe { device::ibv_open_device(c) };
        if context.is_null() {
            let what = format!("opening {}", managed.device.name());
            let number = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
            return Err(Error::System { what, number });
        }
        slots.push(Slot { managed, context, domain: Mutex::new(0) });
    }
    let host = ManagedHost::new(slots.iter().map(|slot| slot.managed.clone()).collect());
    let fresh = Box::into_raw(Box::new(Shared { process, host, slots }));
    let stored = SHARED.compare_exchange(known, fresh, Ordering::AcqRel, Ordering::Acquire);
    // If another thread has stored its state first, use that state. The state created here stays
    // unused.
    // SAFETY: the library frees neither of the two states.
    Ok(unsafe { &*stored.map_or_else(|theirs| theirs, |_| fresh) })
}

impl Shared {
    fn slot(&self, device: &Arc<Device>) -> Result<&Slot, Error> {
        let slot = self.slots.iter().find(|slot| Arc::ptr_eq(&slot.managed.device, device));
        slot.ok_or_else(|| Error::NoDevice("the device belongs to the parent process".into()))
    }

    /// Returns the C structure of the open device, and the address of its protection domain for
    /// ids.
    pub(super) fn open(
        &self,
        device: &Arc<Device>,
    ) -> Result<(*mut ibv_context, *mut ibv_pd), Error> {
        let slot = self.slot(device)?;
        let mut domain = slot.domain.lock().unwrap_or_else(PoisonError::into_inner);
        if *domain == 0 {
            // SAFETY: the context is never closed.
            let made = unsafe { memory::ibv_alloc_pd(slot.context) };
            *domain = made.expose_provenance();
        }
        if *domain == 0 {
            return Err(Error::NoRoom("protection domains".into()));
        }
        Ok((slot.context, ptr::with_exposed_provenance_mut(*domain)))
    }
}

/// Implements `rdma_get_devices`. When the program frees the list, the devices stay open.
///
/// # Safety
/// `count` must be null or writable.
#[unsafe(export_name = "ethernot_rdma_get_devices")]
pub(crate) unsafe extern "C" fn rdma_get_devices(count: *mut c_int) -> *mut *mut ibv_context {
    pointer("rdma_get_devices", || {
        let slots = &shared()?.slots;
        let mut list: Vec<*mut ibv_context> = slots.iter().map(|slot| slot.context).collect();
        if !count.is_null() {
            // SAFETY: the caller meets the requirements of this function.
            unsafe { *count = c_int::try_from(list.len()).unwrap_or(c_int::MAX) };
        }
        list.push(ptr::null_mut());
        // SAFETY: the size is not 0.
        let memory = unsafe { libc::malloc(size_of_val(list.as_slice())) };
        let memory = memory.cast::<*mut ibv_context>();
        if memory.is_null() {
            return Err(Error::NoRoom("memory for the list of devices".into()));
        }
        // SAFETY: the allocation has room for the whole list and does not overlap it.
        unsafe { ptr::copy_nonoverlapping(list.as_ptr(), memory, list.len()) };
        Ok(memory)
    })
}

/// Implements `rdma_free_devices`.
///
/// # Safety
/// The list must come from [`rdma_get_devices`].
#[unsafe(export_name = "ethernot_rdma_free_devices")]
pub(crate) unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: the list is null or was allocated by `malloc`.
    unsafe { libc::free(list.cast()) };
}
