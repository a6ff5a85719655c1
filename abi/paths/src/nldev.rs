//! Answers netlink requests about RDMA (`rdma_netlink.h`): about devices, about their ports, and
//! about how namespaces share the devices.

use std::ffi::CString;

use crate::standing::{Standing, Text, look};

/// Returns the answers to all requests in a message.
pub(crate) fn answer(mut requests: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some((request, rest)) = Request::parse(requests) {
        answer_one(&request, &mut out);
        requests = rest;
    }
    out
}

/// A netlink request: the fields of its header, and its attributes.
struct Request<'a> {
    kind: u16,
    flags: u16,
    sequence: u32,
    port: u32,
    header: &'a [u8],
    attributes: &'a [u8],
}

impl<'a> Request<'a> {
    /// Parses the first request in `bytes`. Returns the request and the bytes after it. Returns
    /// `None` if there is no complete request.
    fn parse(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (header, _) = bytes.split_at_checked(HEADER_BYTES)?;
        let word = |at| u32_at(header, at);
        let half = |at| Some(u16::from_ne_bytes(*header.get(at..)?.first_chunk()?));
        let length = word(0)? as usize;
        let attributes = bytes.get(HEADER_BYTES..length)?;
        let (kind, flags, sequence, port) = (half(4)?, half(6)?, word(8)?, word(12)?);
        let rest = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((Self { kind, flags, sequence, port, header, attributes }, rest))
    }

    /// Returns the number in an attribute. Returns `None` if the request does not have the
    /// attribute.
    fn number(&self, wanted: u16) -> Option<u32> {
        let mut rest = self.attributes;
        loop {
            let length = usize::from(u16::from_ne_bytes(*rest.first_chunk()?));
            let kind = u16::from_ne_bytes(*rest.get(2..)?.first_chunk()?);
            if kind == wanted {
                return u32_at(rest.get(..length)?, ATTRIBUTE_BYTES);
            }
            rest = rest.get(length.max(ATTRIBUTE_BYTES).next_multiple_of(4)..)?;
        }
    }

    fn wants_all(&self) -> bool {
        self.flags & DUMP == DUMP
    }

    /// Appends a message of the given kind to `out`.
    fn reply(&self, out: &mut Vec<u8>, kind: u16, flags: u16, body: &[u8]) {
        let length = HEADER_BYTES + body.len();
        out.extend_from_slice(&(length as u32).to_ne_bytes());
        out.extend_from_slice(&kind.to_ne_bytes());
        out.extend_from_slice(&flags.to_ne_bytes());
        out.extend_from_slice(&self.sequence.to_ne_bytes());
        out.extend_from_slice(&self.port.to_ne_bytes());
        out.extend_from_slice(body);
        out.resize(out.len().next_multiple_of(4), 0);
    }

    /// Appends the message that ends an answer. `number` is an error number, or 0 to acknowledge
    /// the request.
    fn end(&self, out: &mut Vec<u8>, number: i32) {
        let mut body = (-number).to_ne_bytes().to_vec();
        body.extend_from_slice(self.header);
        self.reply(out, ERROR, 0, &body);
    }
}

fn answer_one(request: &Request<'_>, out: &mut Vec<u8>) {
    let found = match request.kind {
        // List all devices, or the device whose index the request contains.
        GET => Ok(bodies(request, device)),
        PORT_GET if request.number(DEVICE_INDEX).is_none() => Err(libc::EINVAL),
        PORT_GET => Ok(bodies(request, port)),
        SYSTEM_GET => Ok(vec![system()]),
        _ => Err(libc::EOPNOTSUPP),
    };
    let bodies = match found {
        Err(number) => return request.end(out, number),
        Ok(bodies) if bodies.is_empty() && !request.wants_all() => {
            return request.end(out, libc::ENODEV);
        }
        Ok(bodies) => bodies,
    };
    let flags = if request.wants_all() { MULTI } else { 0 };
    for body in bodies {
        request.reply(out, request.kind, flags, &body);
    }
    if request.wants_all() {
        request.reply(out, DONE, MULTI, &0_i32.to_ne_bytes());
    } else if request.flags & ACK != 0 {
        request.end(out, 0);
    }
}

/// Returns the result of `body` for each device that the request selects.
fn bodies(request: &Request<'_>, body: fn(u32, &str) -> Vec<u8>) -> Vec<Vec<u8>> {
    let wanted = request.number(DEVICE_INDEX);
    let is_wanted = |index: u32| wanted.is_none_or(|wanted| wanted == index);
    let names = read(DEVICES).unwrap_or_default();
    // Skip the first character of each line, which is the kind of file.
    let names = names.lines().filter_map(|line| line.get(1..));
    let all = (0..).zip(names).filter(|(index, _)| is_wanted(*index));
    all.map(|(index, name)| body(index, name)).collect()
}

/// Returns the attributes of a device.
fn device(index: u32, name: &str) -> Vec<u8> {
    let mut out = identity(index, name);
    put(&mut out, PORT_INDEX, &1_u32.to_ne_bytes());
    put_text(&mut out, FIRMWARE, &file(name, "fw_ver"));
    let guid = |of: &str| {
        let digits: String = file(name, of).chars().filter(char::is_ascii_hexdigit).collect();
        u64::from_str_radix(&digits, 16).unwrap_or(0)
    };
    put(&mut out, NODE_GUID, &guid("node_guid").to_ne_bytes());
    put(&mut out, SYSTEM_GUID, &guid("sys_image_guid").to_ne_bytes());
    put(&mut out, NODE_TYPE, &[CHANNEL_ADAPTER]);
    put_text(&mut out, PROTOCOL, "roce");
    out
}

/// Returns the attributes of the port of a device.
fn port(index: u32, name: &str) -> Vec<u8> {
    let mut out = identity(index, name);
    put(&mut out, PORT_INDEX, &1_u32.to_ne_bytes());
    // Return the number in a file. The file contains a number, a colon and a name.
    let state = |of: &str| {
        let text = file(name, of);
        text.split(':').next().and_then(|number| number.parse().ok()).unwrap_or(0_u8)
    };
    put(&mut out, PORT_STATE, &[state("ports/1/state")]);
    put(&mut out, PORT_PHYSICAL_STATE, &[state("ports/1/phys_state")]);
    let interfaces = read(&format!("{DEVICES}/{name}/device/net")).unwrap_or_default();
    if let Some(interface) = interfaces.lines().find_map(|line| line.get(1..)) {
        let index: u32 =
            file(name, &format!("device/net/{interface}/ifindex")).parse().unwrap_or(0);
        put(&mut out, INTERFACE_INDEX, &index.to_ne_bytes());
        put_text(&mut out, INTERFACE_NAME, interface);
    }
    out
}

fn identity(index: u32, name: &str) -> Vec<u8> {
    let mut out = Vec::new();
    put(&mut out, DEVICE_INDEX, &index.to_ne_bytes());
    put_text(&mut out, DEVICE_NAME, name);
    out
}

/// Returns the attributes of the RDMA subsystem. They state that all namespaces share the devices,
/// and that the kernel copies pinned memory at a fork.
fn system() -> Vec<u8> {
    let mut out = Vec::new();
    put(&mut out, NAMESPACES_MODE, &[1]);
    put(&mut out, COPY_ON_FORK, &[1]);
    out
}

fn put(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = (ATTRIBUTE_BYTES + value.len()) as u16;
    out.extend_from_slice(&length.to_ne_bytes());
    out.extend_from_slice(&kind.to_ne_bytes());
    out.extend_from_slice(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

fn put_text(out: &mut Vec<u8>, kind: u16, text: &str) {
    put(out, kind, &[text.as_bytes(), b"\0"].concat());
}

/// Returns the line in a file of a device. Returns an empty string if there is no such file.
fn file(device: &str, path: &str) -> String {
    let text = read(&format!("{DEVICES}/{device}/{path}")).unwrap_or_default();
    text.trim_end().to_owned()
}

/// Returns the contents of a file, or the names in a folder.
fn read(path: &str) -> Option<String> {
    let path = CString::new(path).ok()?;
    let mut text = Text::new();
    // SAFETY: the path ends with a zero byte.
    match unsafe { look(path.as_ptr(), &mut text) } {
        Standing::File | Standing::Folder => {
            Some(String::from_utf8_lossy(text.bytes()).into_owned())
        }
        _ => None,
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

const DEVICES: &str = "/sys/class/infiniband";

/// Length in bytes of the header of a message (`HEADER_BYTES`) and of an attribute's header
/// (`ATTRIBUTE_BYTES`).
const HEADER_BYTES: usize = 16;
const ATTRIBUTE_BYTES: usize = 4;

const ERROR: u16 = libc::NLMSG_ERROR as u16;
const DONE: u16 = libc::NLMSG_DONE as u16;
const MULTI: u16 = libc::NLM_F_MULTI as u16;
const ACK: u16 = libc::NLM_F_ACK as u16;
const DUMP: u16 = libc::NLM_F_DUMP as u16;

/// Kinds of requests to the netlink client NLDEV.
const NLDEV: u16 = 5 << 10;
const GET: u16 = NLDEV + 1;
const PORT_GET: u16 = NLDEV + 5;
const SYSTEM_GET: u16 = NLDEV + 6;

const DEVICE_INDEX: u16 = 1;
const DEVICE_NAME: u16 = 2;
const PORT_INDEX: u16 = 3;
const FIRMWARE: u16 = 5;
const NODE_GUID: u16 = 6;
const SYSTEM_GUID: u16 = 7;
const PORT_STATE: u16 = 12;
const PORT_PHYSICAL_STATE: u16 = 13;
const NODE_TYPE: u16 = 14;
const INTERFACE_INDEX: u16 = 50;
const INTERFACE_NAME: u16 = 51;
const NAMESPACES_MODE: u16 = 66;
const PROTOCOL: u16 = 67;
const COPY_ON_FORK: u16 = 93;
const CHANNEL_ADAPTER: u8 = 1;
