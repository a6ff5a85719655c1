//! An open `AF_XDP` socket on a queue of an interface, and the program that redirects frames to it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use super::bpf::{AttachMode, Attachment, Program, SocketMap, program_name};
use super::config::{XdpConfig, XdpMode};
use super::device::Device;
use super::error::XdpError;
use super::program::Selection;
use super::receive::Receiver;
use super::shape::Shape;
use super::socket::{XdpSocket, set_option};
use super::transmit::Transmitter;
use crate::ethernet::Framing;
use crate::interface::Interface;
use crate::payload::PayloadCopier;

/// A bound socket. Dropping it detaches the program from the interface.
#[derive(Debug)]
pub(crate) struct Live {
    // This field is first, so that the program is detached before the socket closes. Otherwise the
    // program would redirect frames to a socket that is about to close, and they would be lost.
    attachment: Attachment,
    map: SocketMap,
    pub(crate) socket: XdpSocket,
    pub(super) receiver: Receiver,
    pub(super) transmitter: Transmitter,
    pub(crate) shape: Shape,
    pub(crate) mode: XdpMode,
    /// The queues and the program of the interface, as they were when the socket was opened.
    pub(super) device: Device,
}

impl Live {
    /// Starts to receive frames from the queue. `framing` describes which frames.
    pub(super) fn open(
        config: &XdpConfig,
        interface: &Interface,
        framing: &Framing,
        frame_bytes_max: u32,
    ) -> Result<Self, XdpError> {
        let failures = Failures { config, interface };
        let prepared = Prepared::new(config, interface, framing, frame_bytes_max)?;
        let Prepared { device, shape, mut socket, map, program } = prepared;
        let receiver = Receiver::new(&shape, &mut socket);
        let (attachment, attached) = failures.attach(&program, &device)?;
        failures.bind(&socket, &shape, attached)?;
        map.insert(config.queue, socket.as_fd())
            .map_err(|source| failures.of("redirect frames of", source))?;
        let mode = match attached {
            _ if socket.is_zero_copy() => XdpMode::ZeroCopy,
            AttachMode::Native => XdpMode::Native,
            AttachMode::Generic => XdpMode::Generic,
        };
        let transmitter = Transmitter::new(&shape, mode);
        Ok(Self { attachment, map, socket, receiver, transmitter, shape, mode, device })
    }

    /// Checks whether [`Live::open`] would work, without affecting other traffic of the interface.
    pub(super) fn check(
        config: &XdpConfig,
        interface: &Interface,
        framing: &Framing,
        frame_bytes_max: u32,
    ) -> Result<(), XdpError> {
        let failures = Failures { config, interface };
        let device = Prepared::new(config, interface, framing, frame_bytes_max)?.device;
        device.program.map_or(Ok(()), |id| Err(failures.occupied(id)))
    }

    /// Makes the program select the frames of another framing.
    pub(super) fn select(&self, framing: &Framing) -> io::Result<()> {
        self.attachment.replace(&Program::load(&selection(framing).program(&self.map))?)
    }
}

/// The parts of a link that can be created without changing the interface.
struct Prepared {
    device: Device,
    shape: Shape,
    socket: XdpSocket,
    map: SocketMap,
    program: Program,
}

impl Prepared {
    fn new(
        config: &XdpConfig,
        interface: &Interface,
        framing: &Framing,
        frame_bytes_max: u32,
    ) -> Result<Self, XdpError> {
        let failures = Failures { config, interface };
        PayloadCopier::probe()
            .map_err(|source| failures.of("copy this process's memory for", source))?;
        let device = Device::of(interface).map_err(|source| failures.of("query", source))?;
        if config.queue >= device.queues {
            let (interface, queue) = (interface.name(), config.queue);
            return Err(XdpError::NoSuchQueue { interface, queue, queues: device.queues });
        }
        let shape = Shape::new(config, frame_bytes_max);
        let socket = XdpSocket::new(&shape.socket()).map_err(|source| {
            let socket = shape.socket();
            failures.of_socket(socket.chunks as usize * socket.chunk_bytes as usize, source)
        })?;
        set_options(&socket, config, &shape)
            .map_err(|source| failures.of("set options of a socket for", source))?;
        let map = SocketMap::new(config.queue + 1)
            .map_err(|source| failures.of("make a map of sockets for", source))?;
        let program = Program::load(&selection(framing).program(&map))
            .map_err(|source| failures.of("load a program for", source))?;
        Ok(Self { device, shape, socket, map, program })
    }
}

fn selection(framing: &Framing) -> Selection {
    let Framing { station, ethertype, vlan, port } = *framing;
    Selection { station, ethertype, vlan, port }
}

fn set_options(socket: &XdpSocket, config: &XdpConfig, shape: &Shape) -> io::Result<()> {
    let fd = socket.as_fd();
    // In copying modes, the kernel copies the frames that it sends, and counts the copies with
    // their overhead against the socket's send buffer. All copies may wait in a queue below the
    // socket, so make the buffer large enough for copies of all slots.
    let send_bytes = (shape.slots * (shape.slot_bytes() + SEND_OVERHEAD_BYTES)).cast_signed();
    if set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &send_bytes).is_err() {
        set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &send_bytes)?;
    }
    // Kernels before 6.18 do not have this option. They send 32 frames per call.
    let _ = set_option(fd, libc::SOL_XDP, TRANSMIT_BUDGET, &BUDGET_FRAMES);
    if config.busy_poll {
        set_option(fd, libc::SOL_SOCKET, PREFER_BUSY_POLL, &1_i32)?;
        set_option(fd, libc::SOL_SOCKET, libc::SO_BUSY_POLL, &BUSY_POLL_US)?;
        set_option(fd, libc::SOL_SOCKET, BUSY_POLL_BUDGET, &BUDGET_FRAMES)?;
    }
    Ok(())
}

/// Creates errors that contain the interface and the setting.
struct Failures<'a> {
    config: &'a XdpConfig,
    interface: &'a Interface,
}

impl Failures<'_> {
    /// Attaches the program in the best mode that the configuration permits and that works.
    fn attach(
        &self,
        program: &Program,
        device: &Device,
    ) -> Result<(Attachment, AttachMode), XdpError> {
        let modes: &[AttachMode] = match self.config.mode {
            // Between virtual interfaces, frames arrive in buffers of the network stack. Converting
            // these buffers for native mode costs more than native mode saves.
            None if device.is_veth => &[AttachMode::Generic, AttachMode::Native],
            None => &[AttachMode::Native, AttachMode::Generic],
            Some(XdpMode::Generic) => &[AttachMode::Generic],
            Some(XdpMode::Native | XdpMode::ZeroCopy) => &[AttachMode::Native],
        };
        let mut refusal = io::Error::from_raw_os_error(libc::EOPNOTSUPP);
        for &mode in modes {
            match program.attach(self.interface.index, mode) {
                Ok(attachment) => return Ok((attachment, mode)),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EBUSY | libc::EEXIST) => return Err(self.attached_already(error)),
                    Some(libc::EPERM | libc::ENODEV) => {
                        return Err(self.of("attach a program to", error));
                    }
                    _ => refusal = error,
                },
            }
        }
        let (interface, mtu_bytes) = (self.interface.name(), self.interface.mtu_bytes);
        if refusal.raw_os_error() == Some(libc::ERANGE) || mtu_bytes > MTU_SURE_BYTES {
            let largest_bytes = MTU_SURE_BYTES;
            return Err(XdpError::MtuTooLarge { interface, mtu_bytes, largest_bytes });
        }
        Err(self.unsupported(refusal))
    }

    /// Binds the socket to the queue, with the flags that fit the mode of the program.
    fn bind(
        &self,
        socket: &XdpSocket,
        shape: &Shape,
        attached: AttachMode,
    ) -> Result<(), XdpError> {
        let mut flags = libc::XDP_USE_NEED_WAKEUP;
        if shape.has_fragments() {
            flags |= libc::XDP_USE_SG;
        }
        flags |= match (attached, self.config.mode) {
            // The kernel uses zero-copy if the driver supports that.
            (AttachMode::Native, None) => 0,
            (AttachMode::Native, Some(XdpMode::ZeroCopy)) => libc::XDP_ZEROCOPY,
            _ => libc::XDP_COPY,
        };
        socket.bind(self.interface.index, self.config.queue, flags).map_err(|source| {
            let (interface, queue) = (self.interface.name(), self.config.queue);
            match source.raw_os_error() {
                Some(libc::EBUSY) => XdpError::QueueBusy { interface, queue },
                // Kernels before 6.6 do not support frames in several chunks.
                Some(libc::EINVAL) if shape.has_fragments() => {
                    let mtu_bytes = self.interface.mtu_bytes;
                    XdpError::MtuTooLarge { interface, mtu_bytes, largest_bytes: MTU_SURE_BYTES }
                }
                Some(libc::EOPNOTSUPP | libc::EINVAL) => self.unsupported(source),
                _ => self.of("bind to a queue of", source),
            }
        })
    }

    /// Returns the error for a driver that does not support the mode.
    fn unsupported(&self, source: io::Error) -> XdpError {
        let mode = self.config.mode.unwrap_or(XdpMode::Generic);
        XdpError::ModeUnsupported { interface: self.interface.name(), mode, source }
    }

    /// Returns the error for an interface that already has a program.
    fn attached_already(&self, source: io::Error) -> XdpError {
        match Device::of(self.interface).map(|device| device.program) {
            Ok(Some(id)) => self.occupied(id),
            // The other program was detached before this query, or is not visible.
            _ => self.of("attach a program to", source),
        }
    }

    fn occupied(&self, id: u32) -> XdpError {
        let program = match program_name(id) {
            Ok(name) if !name.is_empty() => format!("{name:?}"),
            _ => "one without a name".into(),
        };
        XdpError::Occupied { interface: self.interface.name(), program, id }
    }

    fn of_socket(&self, bytes: usize, source: io::Error) -> XdpError {
        match source.raw_os_error() {
            Some(libc::EAFNOSUPPORT | libc::ENOPROTOOPT) => XdpError::Unsupported { source },
            Some(libc::ENOBUFS) => {
                XdpError::MemoryLimit { interface: self.interface.name(), bytes }
            }
            _ => self.of("open a socket for", source),
        }
    }

    fn of(&self, attempt: &'static str, source: io::Error) -> XdpError {
        let interface = self.interface.name();
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                let capability = match attempt {
                    "open a socket for" => "CAP_NET_RAW",
                    "copy this process's memory for" => "process_vm_readv, which a filter forbids",
                    _ => "CAP_BPF and CAP_NET_ADMIN",
                };
                XdpError::NoPermission { attempt, interface, capability }
            }
            Some(libc::ENOSYS) => XdpError::Unsupported { source },
            Some(libc::ENODEV | libc::ENXIO) => {
                XdpError::NoSuchInterface { interface, known: Interface::names() }
            }
            _ => XdpError::Io { attempt, interface, source },
        }
    }
}

impl AsFd for Live {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Maximum number of bytes that the kernel adds to a frame when it copies the frame.
const SEND_OVERHEAD_BYTES: u32 = 1024;
/// Number of frames that one call sends, and number of frames that one busy poll receives. An
/// unprivileged process may set no larger value for busy polls.
const BUDGET_FRAMES: u32 = 64;
/// Microseconds for which the kernel busy-polls in a blocking call. The link makes no blocking
/// calls. A value above 0 permits busy polling in its other calls.
const BUSY_POLL_US: i32 = 20;
/// Largest MTU that every driver with XDP supports, in bytes. This is one page without the kernel's
/// headroom and overhead.
const MTU_SURE_BYTES: u32 = 3498;
// Socket options of asm-generic/socket.h and linux/if_xdp.h.
const PREFER_BUSY_POLL: i32 = 69;
const BUSY_POLL_BUDGET: i32 = 70;
const TRANSMIT_BUDGET: i32 = 9;
