//! An open `AF_XDP` socket on a queue of an interface, and the program that feeds it.

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

/// A bound socket. Dropping it takes the program off the interface, if it is still there.
#[derive(Debug)]
pub(crate) struct Live {
    // Taken off first, so that no frame is lost in a socket that is about to close.
    attachment: Attachment,
    map: SocketMap,
    pub(crate) socket: XdpSocket,
    pub(super) receiver: Receiver,
    pub(super) transmitter: Transmitter,
    pub(crate) shape: Shape,
    pub(crate) mode: XdpMode,
    /// What the interface was like.
    pub(super) device: Device,
}

impl Live {
    /// Begins to receive `framing`'s frames from the queue.
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

    /// Finds out whether [`Live::open`] would work, as far as possible without touching what the interface does for
    /// others.
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

    /// Takes frames of another description from now on.
    pub(super) fn select(&self, framing: &Framing) -> io::Result<()> {
        self.attachment.replace(&Program::load(&selection(framing).program(&self.map))?)
    }
}

/// What can be made without the interface noticing.
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
        let device = Device::of(interface).map_err(|source| failures.of("ask about", source))?;
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
    // The kernel copies what it sends one by one and charges it to the socket, with overhead; what
    // is charged at most is what the slots hold, as a queue behind us may keep all of it.
    let send_bytes = (shape.slots * (shape.slot_bytes() + SEND_OVERHEAD_BYTES)).cast_signed();
    if set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &send_bytes).is_err() {
        set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &send_bytes)?;
    }
    // Kernels before 6.18 do not have it and send 32 frames in a call.
    let _ = set_option(fd, libc::SOL_XDP, TRANSMIT_BUDGET, &BUDGET_FRAMES);
    if config.busy_poll {
        set_option(fd, libc::SOL_SOCKET, PREFER_BUSY_POLL, &1_i32)?;
        set_option(fd, libc::SOL_SOCKET, libc::SO_BUSY_POLL, &BUSY_POLL_US)?;
        set_option(fd, libc::SOL_SOCKET, BUSY_POLL_BUDGET, &BUDGET_FRAMES)?;
    }
    Ok(())
}

/// Makes errors that name what they are about.
struct Failures<'a> {
    config: &'a XdpConfig,
    interface: &'a Interface,
}

impl Failures<'_> {
    /// Attaches in the best mode that is wanted and works.
    fn attach(
        &self,
        program: &Program,
        device: &Device,
    ) -> Result<(Attachment, AttachMode), XdpError> {
        let modes: &[AttachMode] = match self.config.mode {
            // Between virtual interfaces frames come as the network stack has them, and turning
            // them into a driver's takes longer than it saves.
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

    /// Binds to the queue the way that goes with where the program is.
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
            // The kernel takes zero-copy if the driver has it.
            (AttachMode::Native, None) => 0,
            (AttachMode::Native, Some(XdpMode::ZeroCopy)) => libc::XDP_ZEROCOPY,
            _ => libc::XDP_COPY,
        };
        socket.bind(self.interface.index, self.config.queue, flags).map_err(|source| {
            let (interface, queue) = (self.interface.name(), self.config.queue);
            match source.raw_os_error() {
                Some(libc::EBUSY) => XdpError::QueueBusy { interface, queue },
                // Kernels before 6.6 do not know frames in several chunks.
                Some(libc::EINVAL) if shape.has_fragments() => {
                    let mtu_bytes = self.interface.mtu_bytes;
                    XdpError::MtuTooLarge { interface, mtu_bytes, largest_bytes: MTU_SURE_BYTES }
                }
                Some(libc::EOPNOTSUPP | libc::EINVAL) => self.unsupported(source),
                _ => self.of("bind to a queue of", source),
            }
        })
    }

    /// The driver does not do what was asked.
    fn unsupported(&self, source: io::Error) -> XdpError {
        let mode = self.config.mode.unwrap_or(XdpMode::Generic);
        XdpError::ModeUnsupported { interface: self.interface.name(), mode, source }
    }

    /// The kernel says that a program is there.
    fn attached_already(&self, source: io::Error) -> XdpError {
        match Device::of(self.interface).map(|device| device.program) {
            Ok(Some(id)) => self.occupied(id),
            // It has gone meanwhile, or does not show.
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

/// What the kernel adds to a frame that it copies, at most.
const SEND_OVERHEAD_BYTES: u32 = 1024;
/// Frames that one call sends, and that one busy poll receives: a full batch, which is also the most
/// that the kernel allows for the latter without a privilege.
const BUDGET_FRAMES: u32 = 64;
/// How long the kernel may busy-poll in calls that wait; ours do not.
const BUSY_POLL_US: i32 = 20;
/// What every driver with XDP takes: one page with the headroom and overhead of the kernel.
const MTU_SURE_BYTES: u32 = 3498;
// Socket options of asm-generic/socket.h and linux/if_xdp.h.
const PREFER_BUSY_POLL: i32 = 69;
const BUSY_POLL_BUDGET: i32 = 70;
const TRANSMIT_BUDGET: i32 = 9;
