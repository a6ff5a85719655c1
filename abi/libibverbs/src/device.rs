//! Listing and opening devices.

use std::ffi::{c_char, c_int};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use rdma_cm::ManagedDevice;
use verbs::{Error, PortCounters, SharedCapture, Transport, sysfs};
use verbs_edge::{DeviceKind, IwarpSettings, LogLevel, Settings};

use crate::failure::{code, invalid, number, pointer, say, silent};
use crate::layout::{ibv_context, ibv_device, verbs_context};
use crate::{end, operations, shell};

/// A device: the C structure, followed by the library's state.
#[repr(C)]
pub(crate) struct Device {
    c: ibv_device,
    /// In other implementations of `libibverbs`, this pointer refers to the operations of the
    /// device's driver. Vendor libraries compare it with their own drivers, so it must differ from
    /// all of them.
    driver: *const u8,
    index: usize,
    managed: ManagedDevice,
}

/// The library's state of an open device.
pub(crate) struct Opened {
    context: Arc<verbs::Context>,
    /// Keeps `cmd_fd` open. Programs duplicate this descriptor.
    _command: File,
}

/// The devices of a process. A forked child creates its own devices.
struct Devices {
    process: u32,
    devices: Vec<*mut Device>,
}

static DEVICES: AtomicPtr<Devices> = AtomicPtr::new(ptr::null_mut());

/// The object to which [`Device::driver`] points.
static DRIVER: u8 = 0;

/// Implements `ibv_get_device_list`.
///
/// # Safety
/// `count` must be null or writable.
#[unsafe(export_name = "ethernot_ibv_get_device_list")]
pub(crate) unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    if !count.is_null() {
        // SAFETY: the caller meets the requirements of this function.
        unsafe { *count = 0 };
    }
    pointer("ibv_get_device_list", || {
        let devices = &devices()?.devices;
        let mut list: Vec<*mut ibv_device> = devices.iter().map(|device| device.cast()).collect();
        if !count.is_null() {
            // SAFETY: the caller meets the requirements of this function.
            unsafe { *count = c_int::try_from(list.len()).unwrap_or(c_int::MAX) };
        }
        list.push(ptr::null_mut());
        let bytes = size_of_val(list.as_slice());
        // Allocate the list with `malloc`, because old programs free the list with `free`.
        // SAFETY: the size is not 0.
        let memory = unsafe { libc::malloc(bytes) }.cast::<*mut ibv_device>();
        if memory.is_null() {
            return Err(Error::NoRoom("memory for the list of devices".into()));
        }
        // SAFETY: the allocation has room for the whole list and does not overlap it.
        unsafe { ptr::copy_nonoverlapping(list.as_ptr(), memory, list.len()) };
        Ok(memory)
    })
}

/// Implements `ibv_free_device_list`. The devices are not freed.
///
/// # Safety
/// The list must come from [`ibv_get_device_list`], or be null.
#[unsafe(export_name = "ethernot_ibv_free_device_list")]
pub(crate) unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: the list is null or was allocated by `malloc`.
    unsafe { libc::free(list.cast()) };
}

/// Implements `ibv_get_device_name`.
///
/// # Safety
/// The device must come from the list.
#[unsafe(export_name = "ethernot_ibv_get_device_name")]
pub(crate) unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    if device.is_null() {
        return ptr::null();
    }
    // SAFETY: the caller meets the requirements of this function. The library never frees devices,
    // so the name stays valid.
    unsafe { &raw const (*device).name }.cast()
}

/// Implements `ibv_get_device_guid`. Returns the GUID in network byte order.
///
/// # Safety
/// The device must come from the list.
#[unsafe(export_name = "ethernot_ibv_get_device_guid")]
pub(crate) unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    silent("ibv_get_device_guid", 0, || {
        // SAFETY: the caller meets the requirements of this function.
        let device = unsafe { ours(device) }?;
        Ok(u64::from_ne_bytes(device.managed.device.attributes().node_guid))
    })
}

/// Implements `ibv_get_device_index`.
///
/// # Safety
/// The device must come from the list.
#[unsafe(export_name = "ethernot_ibv_get_device_index")]
pub(crate) unsafe extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    number("ibv_get_device_index", || {
        // SAFETY: the caller meets the requirements of this function.
        let device = unsafe { ours(device) }?;
        Ok(c_int::try_from(device.index).unwrap_or(-1))
    })
}

/// Implements `ibv_open_device`.
///
/// # Safety
/// The device must come from the list.
#[unsafe(export_name = "ethernot_ibv_open_device")]
pub(crate) unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    pointer("ibv_open_device", || {
        // SAFETY: the caller meets the requirements of this function.
        let opened = unsafe { ours(device) }?.managed.device.open()?;
        end::announce();
        let command =
            OpenOptions::new().read(true).write(true).open("/dev/null").map_err(|cause| {
                Error::System {
                    what: "opening /dev/null".into(),
                    number: cause.raw_os_error().unwrap_or(libc::EIO),
                }
            })?;
        let events = opened.event_descriptor().as_raw_fd();
        let c = operations::context(device, command.as_raw_fd(), events);
        let made = shell::Context::make(c, Opened { context: opened, _command: command });
        // SAFETY: created just above.
        Ok(unsafe { &raw mut (*made).context })
    })
}

/// Implements `ibv_close_device`. Some programs close a device while some of their objects still
/// exist, and expect success. In this case, the context and the objects stay until the program
/// ends.
///
/// # Safety
/// The context must come from [`ibv_open_device`].
#[unsafe(export_name = "ethernot_ibv_close_device")]
pub(crate) unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    code("ibv_close_device", || {
        // SAFETY: the caller meets the requirements of this function.
        match unsafe { of(context) }?.close() {
            Err(Error::Busy(what)) => {
                say(LogLevel::Debug, &format!("a device is closed, but {what}"));
            }
            // SAFETY: `ibv_open_device` created the context, and no object of the context is left.
            Ok(()) => unsafe { shell::Context::free(whole(context)) },
            Err(error) => return Err(error),
        }
        Ok(())
    })
}

/// Implements `ibv_read_sysfs_file`. Generates the content if the file belongs to a device of this
/// library. Reads other files from the host.
///
/// # Safety
/// `folder` and `name` must end with a zero, and `buffer` must have room for `size` bytes.
#[unsafe(export_name = "ethernot_ibv_read_sysfs_file")]
pub(crate) unsafe extern "C" fn ibv_read_sysfs_file(
    folder: *const c_char,
    name: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    number("ibv_read_sysfs_file", || {
        if folder.is_null() || name.is_null() || buffer.is_null() || size == 0 {
            return invalid("the folder, the name or the buffer is null, or the size is 0");
        }
        // SAFETY: the caller meets the requirements of this function.
        let (folder, name) =
            unsafe { (std::ffi::CStr::from_ptr(folder), std::ffi::CStr::from_ptr(name)) };
        let path = format!("{}/{}", folder.to_string_lossy(), name.to_string_lossy());
        let text = read(&path)?;
        let text = text.trim_end_matches('\n');
        let length = text.len().min(size - 1);
        // SAFETY: the caller meets the requirements of this function; the text and its zero take at
        // most `size` bytes.
        unsafe {
            ptr::copy_nonoverlapping(text.as_ptr().cast(), buffer, length);
            *buffer.add(length) = 0;
        }
        Ok(c_int::try_from(length).unwrap_or(c_int::MAX))
    })
}

/// Implements `ibv_get_sysfs_path`.
#[unsafe(export_name = "ethernot_ibv_get_sysfs_path")]
pub(crate) extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// Returns the text of a file, which may belong to a device of this library or to the host.
fn read(path: &str) -> Result<String, Error> {
    if let Some(text) = sysfs::file(&files(path)?, path) {
        return Ok(text);
    }
    std::fs::read_to_string(path).map_err(|cause| Error::System {
        what: format!("reading {path}"),
        number: cause.raw_os_error().unwrap_or(libc::EIO),
    })
}

/// Returns the devices of this process, each with its C structure.
pub(crate) fn all() -> Result<Vec<(*mut ibv_device, ManagedDevice)>, Error> {
    // SAFETY: devices are never freed.
    let pair = |device: &*mut Device| (device.cast(), unsafe { &**device }.managed.clone());
    Ok(devices()?.devices.iter().map(pair).collect())
}

/// Returns all files of all devices, for a look-up of `path`.
///
/// If the path contains `counters`, the files contain the current counters. This takes longer,
/// because the threads that drive the devices must read the counters. For other paths, all counters
/// are 0.
pub(crate) fn files(path: &str) -> Result<Vec<(String, sysfs::SysfsEntry)>, Error> {
    let mut files = Vec::new();
    for &device in &devices()?.devices {
        // SAFETY: devices are never freed.
        let Device { managed: ManagedDevice { device, .. }, index, .. } = unsafe { &*device };
        let (provider, attributes) = (device.provider(), device.attributes());
        let is_counted = path.contains("counters");
        let counters = if is_counted { provider.counters() } else { PortCounters::default() };
        let (port, gids) = (provider.port(), provider.gids());
        files.extend(sysfs::entries(*index, attributes, &port, &counters, &gids));
    }
    Ok(files)
}

/// Returns the library's state of a device.
///
/// # Safety
/// The device must come from the list, or be null.
unsafe fn ours<'a>(device: *mut ibv_device) -> Result<&'a Device, Error> {
    if device.is_null() {
        return invalid("there is no device");
    }
    // SAFETY: the caller meets the requirements of this function. The library never frees devices,
    // and no thread writes to them.
    Ok(unsafe { &*device.cast::<Device>() })
}

/// Returns the library's state of an open device.
///
/// # Safety
/// The context must be null or come from [`ibv_open_device`]. It must not be closed while it is
/// used.
pub(crate) unsafe fn of<'a>(context: *mut ibv_context) -> Result<&'a Arc<verbs::Context>, Error> {
    if context.is_null() {
        return invalid("there is no context");
    }
    // SAFETY: the caller meets the requirements of this function.
    Ok(&unsafe { shell::Context::ours(whole(context), "context") }?.context)
}

/// Returns the `verbs_context` that contains `context`. Programs have the address of the inner
/// structure only.
fn whole(context: *mut ibv_context) -> *mut verbs_context {
    context.wrapping_byte_sub(std::mem::offset_of!(verbs_context, context)).cast()
}

/// Reports to the program that all devices have failed. Has no effect if no device exists.
pub(crate) fn report_failure() {
    let known = DEVICES.load(Ordering::Acquire);
    if known.is_null() {
        return;
    }
    // SAFETY: the list and the devices are never freed.
    for &device in unsafe { &(*known).devices } {
        // SAFETY: the devices are never freed.
        unsafe { &*device }.managed.device.provider().registry().on_device_failed();
    }
}

/// Returns the devices of this process. Creates them on first use.
///
/// After a fork, the child never frees the devices of the parent, because a thread of the parent
/// may have been using them during the fork.
fn devices() -> Result<&'static Devices, Error> {
    let process = std::process::id();
    let known = DEVICES.load(Ordering::Acquire);
    // SAFETY: devices are never freed.
    if let Some(devices) = unsafe { known.as_ref() }
        && devices.process == process
    {
        return Ok(devices);
    }
    let settings = Settings::from_environment().inspect_err(report)?;
    let made = devices_of(&settings).inspect_err(report)?;
    let devices = made.into_iter().enumerate().map(|(index, device)| make(index, device)).collect();
    let fresh = Box::into_raw(Box::new(Devices { process, devices }));
    let stored = DEVICES.compare_exchange(known, fresh, Ordering::AcqRel, Ordering::Acquire);
    // If another thread has stored its devices first, use those devices. The devices created here
    // stay unused.
    // SAFETY: the library never frees devices.
    Ok(unsafe { &*stored.map_or_else(|theirs| theirs, |_| fresh) })
}

// The settings and the device have the same bounds.
const _: () = assert!(
    IwarpSettings::FPDU_BYTES_MIN == verbs_iwarp::FPDU_BYTES_MIN
        && IwarpSettings::FPDU_BYTES_MAX == verbs_iwarp::FPDU_BYTES_MAX
);

/// Returns the devices that the settings name, in the order of the settings.
fn devices_of(settings: &Settings) -> Result<Vec<ManagedDevice>, Error> {
    let named = settings.devices();
    let capture = SharedCapture::new(settings.pcap.clone());
    let mut edges = verbs_edge::devices_capturing(settings, &capture)?.into_iter();
    let mut devices = Vec::new();
    for device in named {
        match device.kind {
            DeviceKind::Edge => devices.extend(edges.next()),
            DeviceKind::Iwarp => {
                let IwarpSettings { crc, markers, fpdu_bytes, faults } = settings.iwarp;
                devices.push(verbs_iwarp::device(verbs_iwarp::Settings {
                    name: device.name,
                    strictness: settings.strictness,
                    progress_processor: settings.progress_processor,
                    crc,
                    markers,
                    fpdu_bytes,
                    faults,
                    log: settings.log,
                    trace: settings.trace.clone(),
                    capture: capture.clone(),
                })?);
            }
        }
    }
    Ok(devices)
}

/// Logs an error that was found in the settings, because otherwise the user would not learn why
/// there are no devices.
fn report(error: &Error) {
    say(LogLevel::Error, &error.to_string());
}

fn make(index: usize, managed: ManagedDevice) -> *mut Device {
    let name = managed.device.name().to_owned();
    let transport = managed.device.attributes().transport();
    let descriptor = sysfs::descriptor_name(index);
    let c = ibv_device {
        ops: [ptr::null(); 2],
        node_type: transport.node_type().number().into(),
        transport_type: transport_number(transport),
        name: text(&name),
        dev_name: text(&descriptor),
        dev_path: text(&format!("{}/{descriptor}", sysfs::DESCRIPTORS)),
        ibdev_path: text(&format!("{}/{name}", sysfs::DEVICES)),
    };
    Box::into_raw(Box::new(Device { c, driver: &raw const DRIVER, index, managed }))
}

/// Copies a text to an array of `N` bytes. If the text is too long, cuts it. The array always ends
/// with a zero.
pub(crate) fn text<const N: usize>(text: &str) -> [c_char; N] {
    let mut room = [0; N];
    for (place, byte) in room.iter_mut().take(N.saturating_sub(1)).zip(text.bytes()) {
        *place = byte.cast_signed();
    }
    room
}

/// Returns the value of a transport in `ibv_transport_type`. With `IBV_TRANSPORT_IB`, programs
/// connect queue pairs themselves and may use datagrams. With `IBV_TRANSPORT_IWARP`, they connect
/// queue pairs by `librdmacm`.
const fn transport_number(transport: Transport) -> c_int {
    match transport {
        Transport::InfiniBand => 0,
        Transport::Iwarp => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transports_have_the_numbers_of_the_headers() {
        assert_eq!(Transport::ALL.map(transport_number), [0, 1]);
        assert_eq!(Transport::ALL.map(|it| it.node_type().number()), [1, 4]);
    }
}
