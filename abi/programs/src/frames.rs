//! Captures of a guest's network card, and what tshark finds in them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A capture that grows while a guest runs.
#[derive(Debug)]
pub(crate) struct Capture {
    file: PathBuf,
    /// Number of bytes that were taken.
    taken: u64,
}

impl Capture {
    /// Returns the capture that qemu writes to a file.
    pub(crate) fn of(file: &Path) -> Self {
        Self { file: file.into(), taken: HEADER_BYTES }
    }

    /// Moves the frames since the last call to another file. Of many frames, only the first are
    /// kept, about [`KEPT_BYTES`] in all.
    pub(crate) fn take(&mut self, to: &Path) -> io::Result<()> {
        let mut file = File::open(&self.file)?;
        let mut header = [0; HEADER_BYTES as usize];
        file.read_exact(&mut header)?;
        let end = file.metadata()?.len();
        file.seek(SeekFrom::Start(self.taken))?;
        let mut frames = vec![0; (end.saturating_sub(self.taken)).min(KEPT_BYTES) as usize];
        file.read_exact(&mut frames)?;
        let whole = whole_frames(&frames);
        let mut copy = File::create(to)?;
        copy.write_all(&header)?;
        copy.write_all(frames.get(..whole).unwrap_or_default())?;
        self.taken = self.end_of_frames(&mut file, end)?;
        // The disk gets the room of the frames back. On file systems that cannot do this, the room
        // stays used until the guest ends.
        let hole = Command::new("fallocate")
            .args(["--punch-hole", "--offset", &HEADER_BYTES.to_string()])
            .args(["--length", &(self.taken - HEADER_BYTES).to_string()])
            .arg(&self.file)
            .output();
        drop(hole);
        Ok(())
    }

    /// Returns the offset behind the last whole frame before `end`.
    fn end_of_frames(&self, file: &mut File, end: u64) -> io::Result<u64> {
        let mut at = self.taken;
        let mut header = [0; FRAME_HEADER_BYTES];
        while at + FRAME_HEADER_BYTES as u64 <= end {
            file.seek(SeekFrom::Start(at))?;
            file.read_exact(&mut header)?;
            let next = at + FRAME_HEADER_BYTES as u64 + u64::from(frame_bytes(&header));
            if next > end {
                break;
            }
            at = next;
        }
        Ok(at)
    }
}

/// Returns the length of the whole frames at the start of these bytes.
fn whole_frames(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(header) = bytes.get(at..at + FRAME_HEADER_BYTES) {
        let next = at + FRAME_HEADER_BYTES + frame_bytes(header) as usize;
        if next > bytes.len() {
            break;
        }
        at = next;
    }
    at
}

/// Returns the number of captured bytes that the header of a frame gives. Captures of qemu have the
/// byte order of the host.
fn frame_bytes(header: &[u8]) -> u32 {
    let bytes = header.get(8..12).and_then(|bytes| bytes.try_into().ok()).unwrap_or_default();
    u32::from_ne_bytes(bytes)
}

/// What tshark decoded in a capture.
#[derive(Debug, Default)]
pub struct Dissection {
    /// Number of FPDUs.
    pub fpdus: u64,
    /// Number of FPDUs with a correct CRC.
    pub good_crcs: u64,
    /// Number of FPDUs with a wrong CRC.
    pub bad_crcs: u64,
    /// Number of malformed frames.
    pub malformed: u64,
    /// Number of bytes of TCP in FPDUs and in frames of the set-up.
    pub decoded_bytes: u64,
    /// Number of bytes of TCP that belong neither to an FPDU nor to a frame of the set-up. Of a
    /// capture that was cut, the bytes of an FPDU at the end are not counted.
    pub undecoded_bytes: u64,
}

impl Dissection {
    /// Returns what tshark decodes in a capture.
    ///
    /// # Panics
    /// Panics if tshark is missing, or cannot read the capture.
    pub fn of(capture: &Path) -> Self {
        let is_cut = capture.metadata().is_ok_and(|file| file.len() + FRAME_BYTES_MAX > KEPT_BYTES);
        let mut dissection = Self::default();
        let fields = FIELDS.iter().flat_map(|field| ["-e", field]);
        let text = tshark(capture, &["-T", "fields"].into_iter().chain(fields).collect::<Vec<_>>());
        let mut directions: BTreeMap<(String, String), Direction> = BTreeMap::new();
        for line in text.lines() {
            dissection.add(line, &mut directions);
        }
        for direction in directions.values().filter(|direction| direction.has_start) {
            dissection.decoded_bytes += direction.decoded;
            let left = direction.bytes.saturating_sub(direction.decoded);
            dissection.undecoded_bytes += if is_cut && left < FPDU_BYTES_MAX { 0 } else { left };
        }
        let shown = tshark(capture, &["-O", "iwarp_mpa"]);
        dissection.good_crcs = shown.matches("(Good CRC32)").count() as u64;
        dissection.bad_crcs = shown.matches("(Bad CRC32").count() as u64;
        dissection
    }

    /// Adds a frame, given its fields.
    fn add(&mut self, line: &str, directions: &mut BTreeMap<(String, String), Direction>) {
        let fields: Vec<&str> = line.split('\t').collect();
        let [stream, port, is_start, at, length, ulpdus, private, malformed] = fields[..] else {
            panic!("tshark printed `{line}`");
        };
        self.malformed += u64::from(!malformed.is_empty());
        if stream.is_empty() {
            return;
        }
        let direction = directions.entry((stream.into(), port.into())).or_default();
        direction.has_start |= is_start == "1";
        let end = numbers(at).chain(numbers(length)).sum::<u64>().saturating_sub(1);
        direction.bytes = direction.bytes.max(if length == "0" { 0 } else { end });
        for ulpdu in numbers(ulpdus) {
            self.fpdus += 1;
            direction.decoded += (LENGTH_BYTES + ulpdu).next_multiple_of(4) + CRC_BYTES;
        }
        direction.decoded += numbers(private).map(|bytes| SETUP_BYTES + bytes).sum::<u64>();
    }
}

/// One direction of a TCP connection.
#[derive(Debug, Default)]
struct Direction {
    /// Whether the capture has the first segment.
    has_start: bool,
    bytes: u64,
    decoded: u64,
}

/// Returns the numbers in a field, which are separated by commas.
fn numbers(field: &str) -> impl Iterator<Item = u64> {
    field.split(',').filter_map(|number| number.parse().ok())
}

/// Returns a line for each frame of a capture that arrived out of order, was repeated, was not
/// captured, is malformed, or has bytes in which tshark sees no iWARP.
///
/// # Panics
/// Panics if tshark is missing, or cannot read the capture.
pub fn unusual_frames(capture: &Path) -> String {
    let filter = "tcp.analysis.flags || _ws.malformed || (tcp.len > 0 && !iwarp_mpa)";
    tshark(capture, &["-Y", filter])
}

/// Runs tshark. It must not guess protocols above RDMAP: the payload of tests is arbitrary. It puts
/// segments in order itself: without that, it decodes none that arrives after a later one. It looks
/// at the bytes before it looks at the ports: a client's own port may be one that tshark knows of
/// another protocol (44818 is EtherNet/IP).
fn tshark(capture: &Path, arguments: &[&str]) -> String {
    let output = Command::new("tshark")
        .args(["-n", "--disable-protocol", "rpcordma", "--disable-protocol", "smb_direct"])
        .args(["-o", "tcp.relative_sequence_numbers:TRUE"])
        .args(["-o", "tcp.reassemble_out_of_order:TRUE"])
        .args(["-o", "tcp.try_heuristic_first:TRUE", "-r"])
        .arg(capture)
        .args(arguments)
        .output()
        .expect("tshark starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "tshark: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The fields of a frame in the order of [`Dissection::add`].
const FIELDS: &[&str] = &[
    "tcp.stream",
    "tcp.srcport",
    "tcp.flags.syn",
    "tcp.seq",
    "tcp.len",
    "iwarp_mpa.ulpdulength",
    "iwarp_mpa.pdlength",
    "_ws.malformed",
];

/// Length of a capture's header, and of the header before each frame (pcap).
const HEADER_BYTES: u64 = 24;
const FRAME_HEADER_BYTES: usize = 16;

/// Bytes that are kept of a run. tshark reads them in about a second.
const KEPT_BYTES: u64 = 8 << 20;

/// Longest frame of a capture with its header.
const FRAME_BYTES_MAX: u64 = 1 << 16;

/// Longest FPDU.
const FPDU_BYTES_MAX: u64 = (1 << 16) + 8;

/// Length of an FPDU's length, of its CRC, and of a set-up frame without private data (RFC 5044
/// sections 4.1 and 7.1.1).
const LENGTH_BYTES: u64 = 2;
const CRC_BYTES: u64 = 4;
const SETUP_BYTES: u64 = 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(payload: &[u8]) -> Vec<u8> {
        let length = (payload.len() as u32).to_ne_bytes();
        [&[0; 8], &length[..], &length[..], payload].concat()
    }

    #[test]
    fn a_frame_that_is_not_whole_is_left_for_the_next_capture() {
        let folder = std::env::temp_dir().join(format!("programs-frames-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let [all, run] = ["all", "run"].map(|name| folder.join(name));
        let (header, one, two) = (vec![7; 24], frame(b"one"), frame(b"second"));
        let mut capture = Capture::of(&all);
        let mut write = |parts: &[&[u8]]| {
            std::fs::write(&all, parts.concat()).expect("room");
            capture.take(&run).expect("it is there");
            std::fs::read(&run).expect("it was written")
        };
        let first = write(&[&header, &one, &two[..18]]);
        let second = write(&[&header, &one, &two]);
        std::fs::remove_dir_all(&folder).expect("removed");
        assert_eq!(first, [&header[..], &one].concat());
        assert_eq!(second, [&header[..], &two].concat());
    }

    /// A capture of siw, and its frames, each with the header of pcap.
    fn capture_of_siw() -> (PathBuf, Vec<u8>, Vec<Vec<u8>>) {
        let captures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/wire-iwarp/tests");
        let file = captures.join("captures/siw-perftest-write-bw.pcap");
        let bytes = std::fs::read(&file).expect("a capture");
        let (header, mut rest) = bytes.split_at(HEADER_BYTES as usize);
        let mut frames = Vec::new();
        while !rest.is_empty() {
            let (frame, later) = rest.split_at(FRAME_HEADER_BYTES + frame_bytes(rest) as usize);
            frames.push(frame.to_vec());
            rest = later;
        }
        (file, header.to_vec(), frames)
    }

    /// Writes a capture, and returns what tshark decodes in it, and its unusual frames.
    fn decoded(name: &str, header: &[u8], frames: &[Vec<u8>]) -> (Dissection, String) {
        let file = format!("programs-{name}-{}", std::process::id());
        let file = std::env::temp_dir().join(file);
        std::fs::write(&file, [header, &frames.concat()].concat()).expect("room");
        let (found, shown) = (Dissection::of(&file), unusual_frames(&file));
        std::fs::remove_file(&file).expect("removed");
        (found, shown)
    }

    /// Two FPDUs of one side, with an acknowledgement between them, change places.
    #[test]
    fn segments_out_of_order_are_decoded() {
        if !crate::are_installed(&["tshark"]) {
            return;
        }
        let (file, header, mut frames) = capture_of_siw();
        frames.swap(12, 14);
        let ordered = Dissection::of(&file);
        let (found, shown) = decoded("order", &header, &frames);
        assert_eq!((ordered.undecoded_bytes, found.undecoded_bytes), (0, 0), "{shown}");
        assert_eq!(found.fpdus, ordered.fpdus, "{shown}");
        assert!(!shown.is_empty());
    }

    /// A client gets one of the ports above 32 767 that tshark knows of other protocols.
    #[test]
    fn a_port_of_another_protocol_is_no_reason_to_decode_that() {
        if !crate::are_installed(&["tshark"]) {
            return;
        }
        let (file, header, mut frames) = capture_of_siw();
        // Headers of pcap, Ethernet and IPv4 without options precede the ports.
        let ports = FRAME_HEADER_BYTES + 14 + 20;
        let client = frames[0][ports..ports + 2].to_vec();
        for frame in &mut frames {
            for port in frame[ports..ports + 4].chunks_exact_mut(2) {
                if *port == client[..] {
                    port.copy_from_slice(&44818_u16.to_be_bytes());
                }
            }
        }
        let captured = Dissection::of(&file);
        let (found, shown) = decoded("ports", &header, &frames);
        assert_eq!((found.undecoded_bytes, found.fpdus), (0, captured.fpdus), "{shown}");
    }

    #[test]
    fn bytes_that_are_no_fpdu_are_counted() {
        let mut dissection = Dissection::default();
        let mut directions = BTreeMap::new();
        for line in [
            "0\t7\t1\t0\t0\t\t\t",
            "0\t7\t0\t1\t24\t\t4\t",
            "0\t7\t0\t25\t40\t14,14\t\t",
            "0\t7\t0\t65\t10\t\t\tmalformed",
            "\t\t\t\t\t\t\t",
        ] {
            dissection.add(line, &mut directions);
        }
        let only = directions.values().next().expect("a direction");
        assert_eq!((only.bytes, only.decoded, only.has_start), (74, 64, true));
        assert_eq!((dissection.fpdus, dissection.malformed), (2, 1));
    }
}
