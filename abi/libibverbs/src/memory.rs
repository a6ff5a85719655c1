//! Domains, memory regions and memory windows.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use verbs::{
    AccessFlags, Error, MemoryRegion, MemoryWindow, ProtectionDomain, Reregistration, WindowType,
    first_address,
};

use crate::device::of;
use crate::failure::{code, invalid, number, pointer, unsupported};
use crate::layout::{
    ibv_context, ibv_dm, ibv_mr, ibv_mw, ibv_parent_domain_init_attr, ibv_pd, ibv_sge, ibv_td,
    ibv_td_init_attr,
};
use crate::shell;

/// What is ours of a protection domain, or of a parent domain, which stands for another one.
pub(crate) struct Domain {
    pub(crate) protects: Arc<ProtectionDomain>,
    /// Of a parent domain: what it stands for.
    stands_for: Option<(*mut ibv_pd, *mut ibv_td)>,
    /// Parent domains that stand for it.
    parents: AtomicU32,
}

/// What is ours of a thread domain: nothing but that it is there, as queues are for any thread.
pub(crate) struct ThreadDomain {
    parents: AtomicU32,
}

/// What is ours of a memory region.
pub(crate) struct Region {
    pub(crate) region: Arc<MemoryRegion>,
    /// The memory of the device that it is of, or null.
    device_memory: AtomicPtr<ibv_dm>,
}

impl Region {
    /// It is of this memory of the device.
    pub(crate) fn of_device(&self, memory: *mut ibv_dm) {
        self.device_memory.store(memory, Ordering::Release);
    }
}

/// What is ours of a memory window.
pub(crate) struct Window {
    pub(crate) window: Arc<MemoryWindow>,
}

/// The domain that a program names.
///
/// # Safety
/// As for [`shell::Shell::ours`].
pub(crate) unsafe fn domain<'a>(pd: *const ibv_pd) -> Result<&'a Domain, Error> {
    // SAFETY: as the caller says.
    unsafe { shell::Domain::ours(pd, "protection domain") }
}

/// `ibv_alloc_pd`.
///
/// # Safety
/// As the manual page says.
#[unsafe(export_name = "ethernot_ibv_alloc_pd")]
pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    pointer("ibv_alloc_pd", || {
        // SAFETY: as the caller says.
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

/// `ibv_dealloc_pd`, of protection domains and of parent domains.
///
/// # Safety
/// As the manual page says.
#[unsafe(export_name = "ethernot_ibv_dealloc_pd")]
pub(crate) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    code("ibv_dealloc_pd", || {
        // SAFETY: as the caller says.
        let Domain { protects: own, stands_for, parents } = unsafe { domain(pd) }?;
        busy_with(parents, "parent domains stand for the protection domain")?;
        match *stands_for {
            None => own.deallocate()?,
            Some((base, thread)) => {
                // SAFETY: what a parent domain stands for stays until the parent domain is deallocated.
                unsafe { domain(base) }?.parents.fetch_sub(1, Ordering::AcqRel);
                if !thread.is_null() {
                    // SAFETY: as above.
                    let thread = unsafe { shell::ThreadDomain::ours(thread, "thread domain") }?;
                    thread.parents.fetch_sub(1, Ordering::AcqRel);
                }
            }
        }
        // SAFETY: the handle was found alive above; no object uses it, or destroying it had failed; and the
        // program makes no other call with a handle that it destroys.
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

/// `ibv_alloc_td`.
pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    init: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    pointer("ibv_alloc_td", || {
        // SAFETY: as the caller says.
        unsafe { of(context) }?;
        // SAFETY: as the caller says.
        if unsafe { init.as_ref() }.is_some_and(|init| init.comp_mask != 0) {
            return invalid("a thread domain is made without more");
        }
        Ok(shell::ThreadDomain::make(
            ibv_td { context },
            ThreadDomain { parents: AtomicU32::new(0) },
        ))
    })
}

/// `ibv_dealloc_td`.
pub(crate) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    code("ibv_dealloc_td", || {
        // SAFETY: as the caller says.
        let ours = unsafe { shell::ThreadDomain::ours(td, "thread domain") }?;
        busy_with(&ours.parents, "parent domains use the thread domain")?;
        // SAFETY: the handle was found alive above; no object uses it, or destroying it had failed; and the
        // program makes no other call with a handle that it destroys.
        unsafe { shell::ThreadDomain::free(td) };
        Ok(())
    })
}

/// `ibv_alloc_parent_domain`. Allocators of the program are taken and not called: nothing is allocated per queue pair
/// that a program could want elsewhere.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    init: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    pointer("ibv_alloc_parent_domain", || {
        // SAFETY: as the caller says.
        unsafe { of(context) }?;
        // SAFETY: as the caller says.
        let Some(init) = (unsafe { init.as_ref() }) else {
            return invalid("there is nothing to stand for");
        };
        if init.comp_mask & !PARENT_KNOWN != 0 {
            return invalid("unknown attributes of a parent domain");
        }
        // SAFETY: as the caller says.
        let base = unsafe { domain(init.pd) }?;
        if base.stands_for.is_some() {
            return invalid("a parent domain stands for a protection domain");
        }
        if !init.td.is_null() {
            // SAFETY: as the caller says.
            unsafe { shell::ThreadDomain::ours(init.td, "thread domain") }?
                .parents
                .fetch_add(1, Ordering::AcqRel);
        }
        base.parents.fetch_add(1, Ordering::AcqRel);
        Ok(make_domain(context, Arc::clone(&base.protects), Some((init.pd, init.td))))
    })
}

/// `ibv_reg_mr`.
///
/// # Safety
/// As the manual page says.
#[unsafe(export_name = "ethernot_ibv_reg_mr")]
pub(crate) unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    let access = AccessFlags(access.cast_unsigned());
    let start = first_address(addr.addr(), access);
    // SAFETY: as the caller says.
    pointer("ibv_reg_mr", || unsafe { register(pd, addr, length, start, access) })
}

/// `ibv_reg_mr_iova`.
///
/// # Safety
/// As the manual page says.
#[unsafe(export_name = "ethernot_ibv_reg_mr_iova")]
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: as the caller says.
    pointer("ibv_reg_mr_iova", || unsafe {
        register(pd, addr, length, iova, AccessFlags(access.cast_unsigned()))
    })
}

/// `ibv_reg_mr_iova2`.
///
/// # Safety
/// As the manual page says.
#[unsafe(export_name = "ethernot_ibv_reg_mr_iova2")]
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: as the caller says.
    pointer("ibv_reg_mr_iova2", || unsafe { register(pd, addr, length, iova, AccessFlags(access)) })
}

/// Registers memory.
///
/// # Safety
/// The domain is one, or null. The memory is the program's, who keeps it while it is registered.
pub(crate) unsafe fn register(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    start: u64,
    access: AccessFlags,
) -> Result<*mut ibv_mr, Error> {
    // SAFETY: as the caller says.
    let region = unsafe { domain(pd) }?.protects.register(
        addr.addr(),
        length as u64,
        start,
        plain(access),
    )?;
    let key = region.key();
    // SAFETY: as the caller says.
    let context = unsafe { (*pd).context };
    let c = ibv_mr { context, pd, addr, length, handle: handle(), lkey: key, rkey: key };
    Ok(shell::Region::make(c, Region { region, device_memory: AtomicPtr::default() }))
}

/// Flags without `IBV_ACCESS_ON_DEMAND`: nothing is pinned, so pages come when they are used, whether a program asks for
/// that or not.
const fn plain(access: AccessFlags) -> AccessFlags {
    AccessFlags(access.0 & !AccessFlags::ON_DEMAND.0)
}

/// `ibv_rereg_mr`: -1 if it fails, and then the region is as it was.
///
/// # Safety
/// As the manual page says.
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
        // SAFETY: as the caller says.
        let region = &unsafe { shell::Region::ours(mr, "memory region") }?.region;
        if flags & !(REREGISTER_RANGE | REREGISTER_DOMAIN | REREGISTER_ACCESS) != 0 || flags == 0 {
            return invalid("unknown changes of a memory region");
        }
        let has = |flag| flags & flag != 0;
        if has(REREGISTER_RANGE) && (length == 0 || addr.is_null()) {
            return invalid("a memory region needs memory");
        }
        let domain = if has(REREGISTER_DOMAIN) {
            // SAFETY: as the caller says.
            Some(&unsafe { domain(pd) }?.protects)
        } else {
            None
        };
        let change = Reregistration {
            domain,
            range: has(REREGISTER_RANGE).then_some((addr.addr(), length as u64)),
            access: has(REREGISTER_ACCESS).then_some(plain(AccessFlags(access.cast_unsigned()))),
        };
        region.reregister(&change)?;
        // SAFETY: the structure is the program's, which waits for this call.
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

/// `ibv_advise_mr`: memory is brought in when it is used, so there is nothing to do.
pub(crate) unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: c_int,
    _flags: u32,
    list: *mut ibv_sge,
    count: u32,
) -> c_int {
    code("ibv_advise_mr", || {
        // SAFETY: as the caller says.
        unsafe { domain(pd) }?;
        if !(0..=ADVICE_MAX).contains(&advice) {
            return unsupported("such advice");
        }
        if list.is_null() || count == 0 {
            return invalid("advice on no memory");
        }
        Ok(())
    })
}

/// `ibv_dereg_mr`.
///
/// # Safety
/// As the manual page says.
#[unsafe(export_name = "ethernot_ibv_dereg_mr")]
pub(crate) unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    code("ibv_dereg_mr", || {
        // SAFETY: as the caller says.
        let ours = unsafe { shell::Region::ours(mr, "memory region") }?;
        ours.region.deregister()?;
        let device_memory = ours.device_memory.load(Ordering::Acquire);
        if !device_memory.is_null() {
            // SAFETY: it was registered so.
            unsafe { crate::device_memory::on_deregistered(device_memory) };
        }
        // SAFETY: the handle was found alive above; no object uses it, or destroying it had failed; and the
        // program makes no other call with a handle that it destroys.
        unsafe { shell::Region::free(mr) };
        Ok(())
    })
}

/// `ibv_alloc_mw`.
pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, mw_type: c_int) -> *mut ibv_mw {
    pointer("ibv_alloc_mw", || {
        let kind = match mw_type {
            1 => WindowType::One,
            2 => WindowType::Two,
            _ => return unsupported("there are windows of type 1 and 2"),
        };
        // SAFETY: as the caller says.
        let window = unsafe { domain(pd) }?.protects.allocate_window(kind)?;
        // SAFETY: as the caller says.
        let context = unsafe { (*pd).context };
        let c = ibv_mw { context, pd, rkey: window.key(), handle: handle(), mw_type };
        Ok(shell::Window::make(c, Window { window }))
    })
}

/// `ibv_dealloc_mw`.
pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    code("ibv_dealloc_mw", || {
        // SAFETY: as the caller says.
        unsafe { shell::Window::ours(mw, "memory window") }?.window.deallocate()?;
        // SAFETY: the handle was found alive above; no object uses it, or destroying it had failed; and the
        // program makes no other call with a handle that it destroys.
        unsafe { shell::Window::free(mw) };
        Ok(())
    })
}

/// A number that distinguishes objects where programs print it.
pub(crate) fn handle() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// `IBV_REREG_MR_CHANGE_TRANSLATION` and its neighbours.
const REREGISTER_RANGE: c_int = 1;
const REREGISTER_DOMAIN: c_int = 2;
const REREGISTER_ACCESS: c_int = 4;

/// `IBV_ADVISE_MR_ADVICE_PREFETCH`, `..._PREFETCH_WRITE` and `..._PREFETCH_NO_FAULT`.
const ADVICE_MAX: c_int = 2;

/// `IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS` and `..._PD_CONTEXT`.
const PARENT_KNOWN: u32 = 1 | 2;
