//! Generates the Wireshark dissector from the table of fields that the codec uses, so that
//! dissector and codec always agree.
//!
//! [`lua`] writes the table as Lua source and appends `dissect.lua`, the code that reads the table.
//! The result is under version control as `tools/wireshark/ethernot.lua`.
#![forbid(unsafe_code)]

use std::fmt::Write;

use wire_edge::fields::{
    self, CONTROL_LAYOUTS, FIELDS, Field, KIND_LAYOUTS, Layout, MAGIC_BYTES, Name, Rest,
    STEP_LAYOUTS, Value, layout_end,
};
use wire_edge::{ETHERTYPE_DEFAULT, Kind, RejectReason, VERSION};

/// Returns the text of the dissector: a Lua script for Wireshark 4.0 (Lua 5.2) and later (Lua 5.4).
pub fn lua() -> String {
    let mut out = String::from(include_str!("opening.lua"));
    // Writing to a String cannot fail.
    let _ = write_tables(&mut out);
    out.push_str(include_str!("dissect.lua"));
    out
}

fn write_tables(out: &mut String) -> std::fmt::Result {
    let magic = u32::from_be_bytes(MAGIC_BYTES);
    writeln!(out, "local VERSION = {VERSION}")?;
    writeln!(out, "local MAGIC = {magic:#x}")?;
    writeln!(out, "local MOVED = {}", RejectReason::Moved.code())?;
    writeln!(out, "local DATAGRAM = {}", Kind::Datagram as u8)?;
    writeln!(out, "local ETHERTYPE_DEFAULT = {ETHERTYPE_DEFAULT:#x}\n")?;
    for (table, names) in NAMES {
        writeln!(out, "local {table} = {{")?;
        for name in *names {
            writeln!(out, "  [{}] = {:?},", name.value, name.name)?;
        }
        writeln!(out, "}}\n")?;
    }
    writeln!(out, "local LAYOUTS = {{")?;
    for layout in LAYOUTS {
        write_layout(out, *layout)?;
    }
    writeln!(out, "}}\n")?;
    writeln!(out, "local KIND_LAYOUTS = {{")?;
    for kind in KIND_LAYOUTS {
        let rest = match kind.rest {
            Rest::Nothing => "nothing",
            Rest::Payload => "payload",
            Rest::Messages => "messages",
            Rest::Padding => "padding",
            Rest::Records => "records",
        };
        writeln!(
            out,
            "  [{}] = {{headers = {}, required = {}, forbidden = {}, with_last = {}, immediate = \"{}\", \
             rest = \"{rest}\"}},",
            kind.kind as u8,
            keys(kind.headers),
            kind.required.bits(),
            kind.forbidden.bits(),
            kind.with_last.bits(),
            key(kind.immediate),
        )?;
    }
    writeln!(out, "}}\n")?;
    writeln!(out, "local STEP_LAYOUTS = {{")?;
    for step in STEP_LAYOUTS {
        writeln!(out, "  [{}] = {},", step.step, keys(step.parts))?;
    }
    writeln!(out, "}}\n")?;
    writeln!(out, "local CONTROL_LAYOUTS = {{")?;
    for control in CONTROL_LAYOUTS {
        let body = control.body.map_or("nil".into(), |body| format!("\"{}\"", key(body)));
        let tail = control.tail_bytes_max;
        writeln!(out, "  [{}] = {{body = {body}, tail_bytes_max = {tail}}},", control.control)?;
    }
    writeln!(out, "}}\n")
}

/// Writes one layout: for each field its filter name, display format, position and permitted
/// values.
fn write_layout(out: &mut String, layout: Layout) -> std::fmt::Result {
    let bytes = layout_end(layout);
    writeln!(out, "  {} = {{bytes = {bytes}, fields = {{", key(layout))?;
    let shown = |field: &&Field| field.layout == layout && field.range != (0, 0);
    for field in FIELDS.iter().filter(shown).filter(|field| field.value != Value::Reserved) {
        let name = field.name;
        let filter = format!("ethernot.{}{name}", filter_prefix(layout));
        let title = title(name);
        let description = format!("{:?}", description(field));
        let kind = match field.size {
            1 => "uint8",
            2 => "uint16",
            3 => "uint24",
            4 => "uint32",
            8 => "uint64",
            _ => "bytes",
        };
        let number = |base: &str, names: &str, mask: &str| {
            format!(
                "ProtoField.{kind}(\"{filter}\", \"{title}\", base.{base}, {names}, {mask}, {description})"
            )
        };
        let (proto, read) = match field.value {
            Value::Bytes | Value::Reserved => (
                format!("ProtoField.bytes(\"{filter}\", \"{title}\", base.NONE, {description})"),
                "bytes",
            ),
            Value::Decimal | Value::Quantity(_) => (number("DEC", "nil", "nil"), "little"),
            Value::Hexadecimal | Value::Bits(_) => (number("HEX", "nil", "nil"), "little"),
            Value::Names(names) => (number("DEC", table(names), "nil"), "little"),
            Value::LowNibble(names) => (number("DEC", table(names), "0x0f"), "little"),
            Value::HighNibble => (number("DEC", "nil", "0xf0"), "little"),
            Value::Port => (number("DEC", "nil", "nil"), "big"),
        };
        let Field { offset, size, range: (min, max), .. } = field;
        write!(
            out,
            "    {{name = \"{name}\", offset = {offset}, size = {size}, read = \"{read}\""
        )?;
        if *min > 0 || *max < u64::MAX {
            write!(out, ", min = {min}, max = {max}")?;
        }
        write!(out, ",\n      proto = {proto}")?;
        if let Value::Bits(names) = field.value {
            write!(out, ", bits = {{")?;
            for bit in names {
                let (name, value, width) = (bit.name, bit.value, field.size * 8);
                let filter = format!("{filter}.{}", name.to_lowercase());
                write!(
                    out,
                    "\n      ProtoField.bool(\"{filter}\", \"{name}\", {width}, nil, {value:#x}),"
                )?;
            }
            write!(out, "\n    }}")?;
        }
        writeln!(out, "}},")?;
    }
    writeln!(out, "  }}}},")
}

/// Returns the description of a field, with its unit if there is one.
fn description(field: &Field) -> String {
    match field.value {
        Value::Quantity(unit) => format!("{} ({unit})", field.description),
        _ => field.description.into(),
    }
}

/// Returns the name as a title: `frame_bytes_max` as "Frame bytes max".
fn title(name: &str) -> String {
    let spaced = name.replace('_', " ");
    let mut letters = spaced.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

/// Returns a Lua list of the layouts' keys.
fn keys(layouts: &[Layout]) -> String {
    let keys: Vec<String> = layouts.iter().map(|layout| format!("\"{}\"", key(*layout))).collect();
    format!("{{{}}}", keys.join(", "))
}

/// Returns the name of the Lua table that contains these names.
fn table(names: &[Name]) -> &'static str {
    NAMES.iter().find(|(_, known)| *known == names).map_or("nil", |(table, _)| table)
}

/// Lua tables that map numbers to names.
const NAMES: &[(&str, &[Name])] = &[
    ("KINDS", fields::KINDS),
    ("FLAGS", fields::FLAG_BITS),
    ("ATOMIC_OPCODES", fields::ATOMIC_OPCODES),
    ("STEPS", fields::STEPS),
    ("CONTROL_TYPES", fields::CONTROL_TYPES),
    ("LINK_STATUSES", fields::LINK_STATUSES),
    ("ENVELOPE_KINDS", fields::ENVELOPE_KINDS),
    ("ADDRESS_FAMILIES", fields::ADDRESS_FAMILIES),
    ("CLOSE_REASONS", fields::CLOSE_REASONS),
    ("REJECT_REASONS", fields::REJECT_REASONS),
];

/// All layouts. A test compares them with the table of fields.
const LAYOUTS: &[Layout] = &[
    Layout::Envelope,
    Layout::Common,
    Layout::Operation,
    Layout::Offset,
    Layout::Length,
    Layout::Opcode,
    Layout::Message,
    Layout::Tagged,
    Layout::Immediate,
    Layout::Invalidated,
    Layout::Operands,
    Layout::Value,
    Layout::PatchRecord,
    Layout::AckSection,
    Layout::AckBlock,
    Layout::ControlMessage,
    Layout::Path,
    Layout::LinkStatus,
    Layout::Close,
    Layout::Address,
    Layout::Links,
    Layout::Gone,
    Layout::NotReady,
    Layout::Preamble,
    Layout::Parameters,
    Layout::Cookie,
    Layout::Counts,
    Layout::Reject,
    Layout::Moved,
    Layout::Reset,
    Layout::VersionMismatch,
    Layout::Datagram,
];

/// Returns the key of a layout in Lua.
fn key(layout: Layout) -> &'static str {
    match layout {
        Layout::Envelope => "envelope",
        Layout::Common => "common",
        Layout::Operation => "operation",
        Layout::Offset => "offset",
        Layout::Length => "length",
        Layout::Opcode => "opcode",
        Layout::Message => "message",
        Layout::Tagged => "tagged",
        Layout::Immediate => "immediate",
        Layout::Invalidated => "invalidated",
        Layout::Operands => "operands",
        Layout::Value => "value",
        Layout::PatchRecord => "patch_record",
        Layout::AckSection => "ack_section",
        Layout::AckBlock => "ack_block",
        Layout::ControlMessage => "control_message",
        Layout::Path => "path",
        Layout::LinkStatus => "link_status",
        Layout::Close => "close",
        Layout::Address => "address",
        Layout::Links => "links",
        Layout::Gone => "gone",
        Layout::NotReady => "not_ready",
        Layout::Preamble => "preamble",
        Layout::Parameters => "parameters",
        Layout::Cookie => "cookie",
        Layout::Counts => "counts",
        Layout::Reject => "reject",
        Layout::Moved => "moved",
        Layout::Reset => "reset",
        Layout::VersionMismatch => "version_mismatch",
        Layout::Datagram => "datagram",
        other => unreachable!("layout {other:?} has no key"),
    }
}

/// Returns the part of a field's display filter between `ethernot.` and the field's name.
fn filter_prefix(layout: Layout) -> &'static str {
    match layout {
        Layout::Envelope => "envelope.",
        Layout::PatchRecord => "record.",
        Layout::AckSection => "ack.",
        Layout::AckBlock => "ack.block.",
        Layout::ControlMessage => "control.",
        Layout::Path => "control.path.",
        Layout::LinkStatus => "control.link_status.",
        Layout::Close => "control.close.",
        Layout::Address => "address.",
        Layout::Links => "control.links.",
        Layout::Gone => "control.gone.",
        Layout::NotReady => "control.not_ready.",
        Layout::Preamble | Layout::Cookie | Layout::Counts => "handshake.",
        Layout::Parameters => "parameters.",
        Layout::Reject => "handshake.reject.",
        Layout::Moved => "handshake.moved.",
        Layout::Reset => "handshake.reset.",
        Layout::VersionMismatch => "handshake.versions.",
        Layout::Datagram => "datagram.",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_layout_of_the_table_is_in_the_dissector() {
        for field in FIELDS {
            assert!(LAYOUTS.contains(&field.layout), "{field:?}");
        }
    }

    #[test]
    fn the_dissector_checked_in_is_the_one_generated() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tools/wireshark/ethernot.lua");
        let checked_in = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            checked_in == lua(),
            "regenerate it: cargo run -p dissector > tools/wireshark/ethernot.lua"
        );
    }
}
