//! Protection domains, memory regions and memory windows.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use verbs::{
    AccessFlags, Context, Error, MemoryRegion, MemoryWindow, OnDemandPaging, ProtectionDomain,
    Reregistration, WindowType, first_address,
};

use crate::device::of;
use crate::failure::{code, invalid, number, pointer, unsupported};
use crate::layout::{
    ibv_context, ibv_dm, ibv_mr, ibv_mw, ibv_parent_domain_init_attr, ibv_pd, ibv_sge, ibv_td,
    ibv_td_init_attr,
};
use crate::shell;

/// The library's state of a protection domain or parent domain.
pub(crate) struct Domain {
    pub(crate) protects: Arc<ProtectionDomain>,
    /// For a parent domain: the protection domain and the thread domain from which the program has
    /// created it. The thread domain may be null.
    stands_for: Option<(*mut ibv_pd, *mut ibv_td)>,
    /// Number of parent domains that the program has created from this domain.
    parents: AtomicU32,
}

/// The library's state of a thread domain. A thread domain has no effect, because any thread may
/// use any queue.
pub(crate) struct ThreadDomain {
    parents: AtomicU32,
}

/// The library's state of a memory region.
pub(crate) struct Region {
    pub(crate) region: Arc<MemoryRegion>,
    /// The device memory in which the region is registered; null for a region of ordinary memory.
    device_memory: AtomicPtr<ibv_dm>,
}

impl Region {
    /// Records that the region is in this device memory.
    pub(crate) fn of_device(&self, memory: *mut ibv_dm) {
        self.device_memory.store(memory, Ordering::Release);
    }
}

/// The library's state of a memory window.
pub(crate) struct Window {
    pub(crate) window: Arc<MemoryWindow>,
}

/// Returns the library's state of a protection domain.
///
/// # Safety
/// The requirements are those of [`shell::Shell::ours`].
pub(crate) unsafe fn domain<'a>(pd: *const ibv_pd) -> Result<&'a Domain, Error> {
    // SAFETY: the caller meets the requirements of this function.
    unsafe { shell::Domain::ours(pd, "protection domain") }
}

/// Implements `ibv_alloc_pd`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_ibv_alloc_pd")]
pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    pointer("ibv_alloc_pd", || {
        // SAFETY: the caller meets the requirements of this function.
        let domain = unsafe { of(context) }?.allocate_domain()?;
        Ok(make_domain(context, domain, None))
    })
}

fn make_domain(
    context: *mut ibv_context,
    domain: Arc<ProtectionDomain>,
    stands_for: Option<(*mut ibv_pd, *mut ibv_td)>,
) -> *mut ibv_pd {
    let ours = Domain { protects: domain, stands_for, parents: AtomicU32::new(0) };
    shell::Domain::make(ibv_pd { context, handle: handle() }, ours)
}

/// Implements `ibv_dealloc_pd`, for protection domains and parent domains.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_ibv_dealloc_pd")]
pub(crate) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    code("ibv_dealloc_pd", || {
        // SAFETY: the caller meets the requirements of this function.
        let Domain { protects: own, stands_for, parents } = unsafe { domain(pd) }?;
        busy_with(parents, "parent domains use the protection domain")?;
        match *stands_for {
            None => own.deallocate()?,
            Some((base, thread)) => {
                // SAFETY: the base domain exists, because it cannot be deallocated before the
                // parent domains that the program has created from it.
                unsafe { domain(base) }?.parents.fetch_sub(1, Ordering::AcqRel);
                if !thread.is_null() {
                    // SAFETY: the thread domain exists, because it cannot be deallocated before the
                    // parent domains that the program has created from it.
                    let thread = unsafe { shell::ThreadDomain::ours(thread, "thread domain") }?;
                    thread.parents.fetch_sub(1, Ordering::AcqRel);
                }
            }
        }
        // SAFETY: the handle is alive, because the call above has checked it. That call fails if
        // another object still uses the handle. The program must not use a handle in another call
        // while it destroys the handle.
        unsafe { shell::Domain::free(pd) };
        Ok(())
    })
}

fn busy_with(count: &AtomicU32, what: &str) -> Result<(), Error> {
    match count.load(Ordering::Acquire) {
        0 => Ok(()),
        count => Err(Error::Busy(format!("{count} {what}"))),
    }
}

/// Implements `ibv_alloc_td`.
pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    init: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    pointer("ibv_alloc_td", || {
        // SAFETY: the caller meets the requirements of this function.
        unsafe { of(context) }?;
        // SAFETY: the caller meets the requirements of this function.
        if unsafe { init.as_ref() }.is_some_and(|init| init.comp_mask != 0) {
            return invalid("unknown attributes of a thread domain");
        }
        Ok(shell::ThreadDomain::make(
            ibv_td { context },
            ThreadDomain { parents: AtomicU32::new(0) },
        ))
    })
}

/// Implements `ibv_dealloc_td`.
pub(crate) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    code("ibv_dealloc_td", || {
        // SAFETY: the caller meets the requirements of this function.
        let ours = unsafe { shell::ThreadDomain::ours(td, "thread domain") }?;
        busy_with(&ours.parents, "parent domains use the thread domain")?;
        // SAFETY: the handle is alive, because the call above has checked it. That call fails if
        // another object still uses the handle. The program must not use a handle in another call
        // while it destroys the handle.
        unsafe { shell::ThreadDomain::free(td) };
        Ok(())
    })
}

/// Implements `ibv_alloc_parent_domain`. Ignores the program's allocators, because the library does
/// not make the allocations for which a driver would use them.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    init: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    pointer("ibv_alloc_parent_domain", || {
        // SAFETY: the caller meets the requirements of this function.
        unsafe { of(context) }?;
        // SAFETY: the caller meets the requirements of this function.
        let Some(init) = (unsafe { init.as_ref() }) else {
            return invalid("the attributes are null");
        };
        if init.comp_mask & !PARENT_KNOWN != 0 {
            return invalid("unknown attributes of a parent domain");
        }
        // SAFETY: the caller meets the requirements of this function.
        let base = unsafe { domain(init.pd) }?;
        if base.stands_for.is_some() {
            return invalid("a parent domain cannot be created from a parent domain");
        }
        if !init.td.is_null() {
            // SAFETY: the caller meets the requirements of this function.
            unsafe { shell::ThreadDomain::ours(init.td, "thread domain") }?
                .parents
                .fetch_add(1, Ordering::AcqRel);
        }
        base.parents.fetch_add(1, Ordering::AcqRel);
        Ok(make_domain(context, Arc::clone(&base.protects), Some((init.pd, init.td))))
    })
}

/// Implements `ibv_reg_mr`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_ibv_reg_mr")]
pub(crate) unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    let access = AccessFlags(access.cast_unsigned());
    let start = first_address(addr.addr(), access);
    // SAFETY: the caller meets the requirements of this function.
    pointer("ibv_reg_mr", || unsafe { register(pd, addr, length, start, access) })
}

/// Implements `ibv_reg_mr_iova`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_ibv_reg_mr_iova")]
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller meets the requirements of this function.
    pointer("ibv_reg_mr_iova", || unsafe {
        register(pd, addr, length, iova, AccessFlags(access.cast_unsigned()))
    })
}

/// Implements `ibv_reg_mr_iova2`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_ibv_reg_mr_iova2")]
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: the caller meets the requirements of this function.
    pointer("ibv_reg_mr_iova2", || unsafe { register(pd, addr, length, iova, AccessFlags(access)) })
}

/// Registers memory.
///
/// # Safety
/// The domain must be valid or null. The memory must belong to the program and must stay allocated
/// while it is registered.
pub(crate) unsafe fn register(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    start: u64,
    access: AccessFlags,
) -> Result<*mut ibv_mr, Error> {
    // SAFETY: the caller meets the requirements of this function.
    let protects = &unsafe { domain(pd) }?.protects;
    let access = plain(access, paging(protects.context()));
    let region = protects.register(addr.addr(), length as u64, start, access)?;
    let key = region.key();
    // SAFETY: the caller meets the requirements of this function.
    let context = unsafe { (*pd).context };
    let c = ibv_mr { context, pd, addr, length, handle: handle(), lkey: key, rkey: key };
    Ok(shell::Region::make(c, Region { region, device_memory: AtomicPtr::default() }))
}

/// Returns the flags without `IBV_ACCESS_ON_DEMAND` if the device supports on-demand paging. The
/// library pins no memory, so that on such a device every region supports it. On other devices, the
/// flag stays, and the registration fails.
const fn plain(access: AccessFlags, paging: OnDemandPaging) -> AccessFlags {
    match paging {
        OnDemandPaging::Supported => AccessFlags(access.0 & !AccessFlags::ON_DEMAND.0),
        OnDemandPaging::Unsupported => access,
    }
}

fn paging(context: &Context) -> OnDemandPaging {
    context.device().attributes().on_demand_paging
}

/// Implements `ibv_rereg_mr`. If this fails, returns -1 and leaves the region unchanged.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_ibv_rereg_mr")]
pub(crate) unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    number("ibv_rereg_mr", || {
        // SAFETY: the caller meets the requirements of this function.
        let region = &unsafe { shell::Region::ours(mr, "memory region") }?.region;
        if flags & !(REREGISTER_RANGE | REREGISTER_DOMAIN | REREGISTER_ACCESS) != 0 || flags == 0 {
            return invalid("unknown changes of a memory region");
        }
        let has = |flag| flags & flag != 0;
        if has(REREGISTER_RANGE) && (length == 0 || addr.is_null()) {
            return invalid("the address is null or the length is 0");
        }
        let domain = if has(REREGISTER_DOMAIN) {
            // SAFETY: the caller meets the requirements of this function.
            Some(&unsafe { domain(pd) }?.protects)
        } else {
            None
        };
        let change = Reregistration {
            domain,
            range: has(REREGISTER_RANGE).then_some((addr.addr(), length as u64)),
            access: has(REREGISTER_ACCESS).then(|| {
                plain(AccessFlags(access.cast_unsigned()), paging(region.domain().context()))
            }),
        };
        region.reregister(&change)?;
        // SAFETY: the structure belongs to the program, which must not access it during this call.
        let c = unsafe { &mut *mr };
        (c.lkey, c.rkey) = (region.key(), region.key());
        if has(REREGISTER_DOMAIN) {
            c.pd = pd;
        }
        if has(REREGISTER_RANGE) {
            (c.addr, c.length) = (addr, length);
        }
        Ok(0)
    })
}

/// Implements `ibv_advise_mr`. Only checks the arguments. There is nothing to prefetch, because the
/// kernel maps pages on first use.
pub(crate) unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: c_int,
    _flags: u32,
    list: *mut ibv_sge,
    count: u32,
) -> c_int {
    code("ibv_advise_mr", || {
        // SAFETY: the caller meets the requirements of this function.
        let protects = &unsafe { domain(pd) }?.protects;
        if paging(protects.context()) == OnDemandPaging::Unsupported {
            return unsupported("advice about memory on a device without on-demand paging");
        }
        if !(0..=ADVICE_MAX).contains(&advice) {
            return unsupported("such advice");
        }
        if list.is_null() || count == 0 {
            return invalid("the list is null or empty");
        }
        Ok(())
    })
}

/// Implements `ibv_dereg_mr`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_ibv_dereg_mr")]
pub(crate) unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    code("ibv_dereg_mr", || {
        // SAFETY: the caller meets the requirements of this function.
        let ours = unsafe { shell::Region::ours(mr, "memory region") }?;
        ours.region.deregister()?;
        let device_memory = ours.device_memory.load(Ordering::Acquire);
        if !device_memory.is_null() {
            // SAFETY: the region was registered in this device memory.
            unsafe { crate::device_memory::on_deregistered(device_memory) };
        }
        // SAFETY: the handle is alive, because the call above has checked it. That call fails if
        // another object still uses the handle. The program must not use a handle in another call
        // while it destroys the handle.
        unsafe { shell::Region::free(mr) };
        Ok(())
    })
}

/// Implements `ibv_alloc_mw`.
pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, mw_type: c_int) -> *mut ibv_mw {
    pointer("ibv_alloc_mw", || {
        let kind = match mw_type {
            1 => WindowType::One,
            2 => WindowType::Two,
            _ => return unsupported("memory window types other than 1 and 2"),
        };
        // SAFETY: the caller meets the requirements of this function.
        let window = unsafe { domain(pd) }?.protects.allocate_window(kind)?;
        // SAFETY: the caller meets the requirements of this function.
        let context = unsafe { (*pd).context };
        let c = ibv_mw { context, pd, rkey: window.key(), handle: handle(), mw_type };
        Ok(shell::Window::make(c, Window { window }))
    })
}

/// Implements `ibv_dealloc_mw`.
pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    code("ibv_dealloc_mw", || {
        // SAFETY: the caller meets the requirements of this function.
        unsafe { shell::Window::ours(mw, "memory window") }?.window.deallocate()?;
        // SAFETY: the handle is alive, because the call above has checked it. That call fails if
        // another object still uses the handle. The program must not use a handle in another call
        // while it destroys the handle.
        unsafe { shell::Window::free(mw) };
        Ok(())
    })
}

/// Returns a new number for the `handle` field of an object. Programs print this number, but the
/// library does not use it.
pub(crate) fn handle() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Values of `IBV_REREG_MR_CHANGE_TRANSLATION`, `..._CHANGE_PD` and `..._CHANGE_ACCESS`.
const REREGISTER_RANGE: c_int = 1;
const REREGISTER_DOMAIN: c_int = 2;
const REREGISTER_ACCESS: c_int = 4;

/// Largest known value of the advice. `IBV_ADVISE_MR_ADVICE_PREFETCH`, `..._PREFETCH_WRITE` and
/// `..._PREFETCH_NO_FAULT` have the values 0 to 2.
const ADVICE_MAX: c_int = 2;

/// Combines `IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS` and `..._PD_CONTEXT`.
const PARENT_KNOWN: u32 = 1 | 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_devices_without_on_demand_paging_see_the_flag_that_asks_for_it() {
        let asked = AccessFlags::LOCAL_WRITE.union(AccessFlags::ON_DEMAND);
        assert_eq!(plain(asked, OnDemandPaging::Supported), AccessFlags::LOCAL_WRITE);
        assert_eq!(plain(asked, OnDemandPaging::Unsupported), asked);
    }
}
