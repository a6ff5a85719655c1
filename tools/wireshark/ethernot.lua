-- Wireshark dissector of the Ethernot edge protocol (docs/protocol.md).
--
-- Generated from the table of fields in crates/wire-edge; don't edit. To generate it again:
--   cargo run -p dissector > tools/wireshark/ethernot.lua
-- To use it: wireshark -X lua_script:tools/wireshark/ethernot.lua
-- or copy it into the personal plugin folder (Help > About > Folders).
--
-- Recognises handshakes by their magic number, and connection frames by the UDP conversation, or by
-- the connection id and epoch of an earlier handshake. If a capture does not contain the handshake,
-- set the preference "UDP port". Frames on raw Ethernet follow an envelope with a checksum, which
-- the dissector checks. If the EtherType is not the default, set the preference of
-- "ethernot_envelope".

local VERSION = 1
local MAGIC = 0x4554484e
local MOVED = 5
local DATAGRAM = 10
local ETHERTYPE_DEFAULT = 0x88b5

local KINDS = {
  [0] = "Handshake",
  [1] = "Ack",
  [2] = "Control",
  [3] = "Write",
  [4] = "ReadRequest",
  [5] = "ReadResponse",
  [6] = "Send",
  [7] = "Atomic",
  [8] = "AtomicResponse",
  [9] = "Probe",
  [10] = "Datagram",
  [11] = "SendInvalidate",
  [12] = "Patch",
}

local FLAGS = {
  [1] = "LAST",
  [2] = "FENCE_BEFORE",
  [4] = "FENCE_AFTER",
  [8] = "STRICT",
  [16] = "IMMEDIATE",
  [32] = "ACK_NOW",
  [64] = "ACK",
  [128] = "SOLICITED",
}

local ATOMIC_OPCODES = {
  [1] = "fetch-and-add",
  [2] = "compare-and-swap",
  [3] = "swap",
}

local STEPS = {
  [1] = "Hello",
  [2] = "Retry",
  [3] = "Accept",
  [4] = "Reject",
  [5] = "Pending",
  [6] = "Reset",
  [7] = "VersionMismatch",
}

local CONTROL_TYPES = {
  [0] = "Padding",
  [1] = "Ping",
  [2] = "PathChallenge",
  [3] = "PathResponse",
  [4] = "LinkStatus",
  [5] = "Close",
  [6] = "CloseAck",
  [7] = "Address",
  [8] = "Links",
  [9] = "Gone",
  [10] = "NotReady",
  [11] = "Ready",
}

local LINK_STATUSES = {
  [1] = "available",
  [2] = "backup",
  [3] = "down",
  [4] = "removed",
}

local ENVELOPE_KINDS = {
  [1] = "Frame",
  [2] = "Discover",
  [3] = "Here",
}

local ADDRESS_FAMILIES = {
  [1] = "MAC",
  [2] = "shared memory",
  [4] = "IPv4",
  [6] = "IPv6",
}

local CLOSE_REASONS = {
  [0] = "finished",
  [1] = "closed by the application",
  [2] = "access denied: unknown key",
  [3] = "access denied: out of range",
  [4] = "access denied: right missing",
  [5] = "access denied: misaligned",
  [6] = "protocol violation",
  [7] = "message longer than the receive",
  [8] = "resource limit",
  [9] = "peer restarted",
  [10] = "local memory gone",
}

local REJECT_REASONS = {
  [1] = "refused by the application",
  [2] = "no listener for this service",
  [3] = "limit of connections reached",
  [4] = "parameters unacceptable",
  [5] = "moved",
}

local LAYOUTS = {
  envelope = {bytes = 12, fields = {
    {name = "envelope_version", offset = 0, size = 1, read = "little", min = 1, max = 1,
      proto = ProtoField.uint8("ethernot.envelope.envelope_version", "Envelope version", base.DEC, nil, nil, "Version of the envelope")},
    {name = "envelope_kind", offset = 1, size = 1, read = "little", min = 1, max = 3,
      proto = ProtoField.uint8("ethernot.envelope.envelope_kind", "Envelope kind", base.DEC, ENVELOPE_KINDS, nil, "What the envelope holds")},
    {name = "length", offset = 2, size = 2, read = "little",
      proto = ProtoField.uint16("ethernot.envelope.length", "Length", base.DEC, nil, nil, "Bytes that follow, without padding (bytes)")},
    {name = "destination_port", offset = 4, size = 2, read = "big",
      proto = ProtoField.uint16("ethernot.envelope.destination_port", "Destination port", base.DEC, nil, nil, "Endpoint on the receiving host, big-endian")},
    {name = "source_port", offset = 6, size = 2, read = "big",
      proto = ProtoField.uint16("ethernot.envelope.source_port", "Source port", base.DEC, nil, nil, "Endpoint on the sending host, big-endian")},
    {name = "checksum", offset = 8, size = 4, read = "little",
      proto = ProtoField.uint32("ethernot.envelope.checksum", "Checksum", base.HEX, nil, nil, "CRC-32C of the eight bytes before it and of what follows the envelope")},
  }},
  common = {bytes = 12, fields = {
    {name = "kind", offset = 0, size = 1, read = "little",
      proto = ProtoField.uint8("ethernot.kind", "Kind", base.DEC, KINDS, 0x0f, "What the frame is")},
    {name = "link", offset = 0, size = 1, read = "little",
      proto = ProtoField.uint8("ethernot.link", "Link", base.DEC, nil, 0xf0, "Link the packet number belongs to")},
    {name = "flags", offset = 1, size = 1, read = "little",
      proto = ProtoField.uint8("ethernot.flags", "Flags", base.HEX, nil, nil, "Flags"), bits = {
      ProtoField.bool("ethernot.flags.last", "LAST", 8, nil, 0x1),
      ProtoField.bool("ethernot.flags.fence_before", "FENCE_BEFORE", 8, nil, 0x2),
      ProtoField.bool("ethernot.flags.fence_after", "FENCE_AFTER", 8, nil, 0x4),
      ProtoField.bool("ethernot.flags.strict", "STRICT", 8, nil, 0x8),
      ProtoField.bool("ethernot.flags.immediate", "IMMEDIATE", 8, nil, 0x10),
      ProtoField.bool("ethernot.flags.ack_now", "ACK_NOW", 8, nil, 0x20),
      ProtoField.bool("ethernot.flags.ack", "ACK", 8, nil, 0x40),
      ProtoField.bool("ethernot.flags.solicited", "SOLICITED", 8, nil, 0x80),
    }},
    {name = "epoch", offset = 2, size = 2, read = "little",
      proto = ProtoField.uint16("ethernot.epoch", "Epoch", base.HEX, nil, nil, "Chosen by the receiver of the frame")},
    {name = "connection", offset = 4, size = 4, read = "little",
      proto = ProtoField.uint32("ethernot.connection", "Connection", base.HEX, nil, nil, "Connection id the receiver chose")},
    {name = "packet", offset = 8, size = 4, read = "little",
      proto = ProtoField.uint32("ethernot.packet", "Packet", base.DEC, nil, nil, "Low 32 bits of the packet number on this link")},
  }},
  operation = {bytes = 16, fields = {
    {name = "operation", offset = 12, size = 4, read = "little",
      proto = ProtoField.uint32("ethernot.operation", "Operation", base.DEC, nil, nil, "Operation sequence number")},
  }},
  offset = {bytes = 20, fields = {
    {name = "offset", offset = 16, size = 4, read = "little", min = 0, max = 2147483648,
      proto = ProtoField.uint32("ethernot.offset", "Offset", base.DEC, nil, nil, "Of the payload's first byte within the operation (bytes)")},
  }},
  length = {bytes = 20, fields = {
    {name = "length", offset = 16, size = 4, read = "little", min = 0, max = 2147483648,
      proto = ProtoField.uint32("ethernot.length", "Length", base.DEC, nil, nil, "Bytes to read (bytes)")},
  }},
  opcode = {bytes = 20, fields = {
    {name = "opcode", offset = 16, size = 4, read = "little", min = 1, max = 3,
      proto = ProtoField.uint32("ethernot.opcode", "Opcode", base.DEC, ATOMIC_OPCODES, nil, "Atomic operation to perform")},
  }},
  message = {bytes = 24, fields = {
    {name = "message", offset = 20, size = 4, read = "little",
      proto = ProtoField.uint32("ethernot.message", "Message", base.DEC, nil, nil, "Ordinal of the receive it consumes")},
  }},
  tagged = {bytes = 32, fields = {
    {name = "key", offset = 20, size = 4, read = "little",
      proto = ProtoField.uint32("ethernot.key", "Key", base.HEX, nil, nil, "Remote key")},
    {name = "address", offset = 24, size = 8, read = "little",
      proto = ProtoField.uint64("ethernot.address", "Address", base.HEX, nil, nil, "Remote address of the first byte")},
  }},
  immediate = {bytes = 4, fields = {
    {name = "immediate", offset = 0, size = 4, read = "little",
      proto = ProtoField.uint32("ethernot.immediate", "Immediate", base.HEX, nil, nil, "Delivered with the completion")},
  }},
  invalidated = {bytes = 4, fields = {
    {name = "invalidated", offset = 0, size = 4, read = "little",
      proto = ProtoField.uint32("ethernot.invalidated", "Invalidated", base.HEX, nil, nil, "Key of the receiver that ends when the message is delivered")},
  }},
  operands = {bytes = 48, fields = {
    {name = "operand", offset = 32, size = 8, read = "little",
      proto = ProtoField.uint64("ethernot.operand", "Operand", base.HEX, nil, nil, "Addend, or the value to store")},
    {name = "compare", offset = 40, size = 8, read = "little",
      proto = ProtoField.uint64("ethernot.compare", "Compare", base.HEX, nil, nil, "Value to compare with, 0 for other operations")},
  }},
  value = {bytes = 28, fields = {
    {name = "value", offset = 20, size = 8, read = "little",
      proto = ProtoField.uint64("ethernot.value", "Value", base.HEX, nil, nil, "What the memory held before")},
  }},
  patch_record = {bytes = 8, fields = {
    {name = "block", offset = 0, size = 2, read = "little",
      proto = ProtoField.uint16("ethernot.record.block", "Block", base.DEC, nil, nil, "Block of 32 words, from the start of the area")},
    {name = "bitmap", offset = 4, size = 4, read = "little",
      proto = ProtoField.uint32("ethernot.record.bitmap", "Bitmap", base.HEX, nil, nil, "Bit i: word i of the block follows")},
  }},
  ack_section = {bytes = 12, fields = {
    {name = "blocks", offset = 0, size = 1, read = "little", min = 0, max = 16,
      proto = ProtoField.uint8("ethernot.ack.blocks", "Blocks", base.DEC, nil, nil, "Link blocks that follow")},
    {name = "delivered", offset = 4, size = 4, read = "little",
      proto = ProtoField.uint32("ethernot.ack.delivered", "Delivered", base.DEC, nil, nil, "All operations before this number are delivered")},
    {name = "credit", offset = 8, size = 4, read = "little",
      proto = ProtoField.uint32("ethernot.ack.credit", "Credit", base.DEC, nil, nil, "Message number up to which (exclusive) receives are posted")},
  }},
  ack_block = {bytes = 12, fields = {
    {name = "link", offset = 0, size = 1, read = "little", min = 0, max = 15,
      proto = ProtoField.uint8("ethernot.ack.block.link", "Link", base.DEC, nil, nil, "Link whose packets this block acknowledges")},
    {name = "words", offset = 1, size = 1, read = "little", min = 0, max = 8,
      proto = ProtoField.uint8("ethernot.ack.block.words", "Words", base.DEC, nil, nil, "Bitmap words that follow")},
    {name = "marked", offset = 2, size = 2, read = "little",
      proto = ProtoField.uint16("ethernot.ack.block.marked", "Marked", base.DEC, nil, nil, "Frames received with a congestion mark so far, modulo 2^16")},
    {name = "delay", offset = 4, size = 2, read = "little",
      proto = ProtoField.uint16("ethernot.ack.block.delay", "Delay", base.DEC, nil, nil, "From the arrival of the largest packet to this acknowledgement (units of 64 ns)")},
    {name = "run", offset = 6, size = 2, read = "little", min = 1, max = 65535,
      proto = ProtoField.uint16("ethernot.ack.block.run", "Run", base.DEC, nil, nil, "Packets received without a gap up to and including the largest")},
    {name = "largest", offset = 8, size = 4, read = "little",
      proto = ProtoField.uint32("ethernot.ack.block.largest", "Largest", base.DEC, nil, nil, "Low 32 bits of the largest packet number received")},
  }},
  control_message = {bytes = 2, fields = {
    {name = "type", offset = 0, size = 1, read = "little",
      proto = ProtoField.uint8("ethernot.control.type", "Type", base.DEC, CONTROL_TYPES, nil, "Type of the message")},
    {name = "length", offset = 1, size = 1, read = "little",
      proto = ProtoField.uint8("ethernot.control.length", "Length", base.DEC, nil, nil, "Length of the body (bytes)")},
  }},
  path = {bytes = 8, fields = {
    {name = "nonce", offset = 0, size = 8, read = "little",
      proto = ProtoField.uint64("ethernot.control.path.nonce", "Nonce", base.HEX, nil, nil, "Random number to be returned")},
  }},
  link_status = {bytes = 2, fields = {
    {name = "link", offset = 0, size = 1, read = "little", min = 0, max = 15,
      proto = ProtoField.uint8("ethernot.control.link_status.link", "Link", base.DEC, nil, nil, "Link whose status changes")},
    {name = "status", offset = 1, size = 1, read = "little", min = 1, max = 4,
      proto = ProtoField.uint8("ethernot.control.link_status.status", "Status", base.DEC, LINK_STATUSES, nil, "New status of the link")},
  }},
  close = {bytes = 6, fields = {
    {name = "reason", offset = 0, size = 2, read = "little",
      proto = ProtoField.uint16("ethernot.control.close.reason", "Reason", base.DEC, CLOSE_REASONS, nil, "Why the connection ends")},
    {name = "operation", offset = 2, size = 4, read = "little",
      proto = ProtoField.uint32("ethernot.control.close.operation", "Operation", base.DEC, nil, nil, "Operation at fault, else 0")},
  }},
  address = {bytes = 20, fields = {
    {name = "family", offset = 0, size = 1, read = "little",
      proto = ProtoField.uint8("ethernot.address.family", "Family", base.DEC, ADDRESS_FAMILIES, nil, "Family of the address")},
    {name = "port", offset = 2, size = 2, read = "big",
      proto = ProtoField.uint16("ethernot.address.port", "Port", base.DEC, nil, nil, "UDP port, or that of an endpoint on raw Ethernet, big-endian")},
    {name = "address", offset = 4, size = 16, read = "bytes",
      proto = ProtoField.bytes("ethernot.address.address", "Address", base.NONE, "Address; bytes the family does not use are 0")},
  }},
  links = {bytes = 2, fields = {
    {name = "links", offset = 0, size = 2, read = "little",
      proto = ProtoField.uint16("ethernot.control.links.links", "Links", base.HEX, nil, nil, "Link indices that the sender has, a bit each")},
  }},
  gone = {bytes = 4, fields = {
    {name = "operation", offset = 0, size = 4, read = "little",
      proto = ProtoField.uint32("ethernot.control.gone.operation", "Operation", base.DEC, nil, nil, "Read whose answer cannot be sent again")},
  }},
  not_ready = {bytes = 4, fields = {
    {name = "message", offset = 0, size = 4, read = "little",
      proto = ProtoField.uint32("ethernot.control.not_ready.message", "Message", base.DEC, nil, nil, "Message for which there is no receive now")},
  }},
  preamble = {bytes = 16, fields = {
    {name = "step", offset = 1, size = 1, read = "little", min = 1, max = 7,
      proto = ProtoField.uint8("ethernot.handshake.step", "Step", base.DEC, STEPS, nil, "Step of the handshake")},
    {name = "version", offset = 2, size = 2, read = "little",
      proto = ProtoField.uint16("ethernot.handshake.version", "Version", base.DEC, nil, nil, "Version of the protocol")},
    {name = "magic", offset = 4, size = 4, read = "bytes",
      proto = ProtoField.bytes("ethernot.handshake.magic", "Magic", base.NONE, "\"ETHN\"")},
    {name = "destination", offset = 8, size = 4, read = "little",
      proto = ProtoField.uint32("ethernot.handshake.destination", "Destination", base.HEX, nil, nil, "Connection id the receiver chose, 0 if none")},
    {name = "source", offset = 12, size = 4, read = "little",
      proto = ProtoField.uint32("ethernot.handshake.source", "Source", base.HEX, nil, nil, "Connection id the sender chose, 0 if none")},
  }},
  parameters = {bytes = 64, fields = {
    {name = "incarnation", offset = 0, size = 8, read = "little",
      proto = ProtoField.uint64("ethernot.parameters.incarnation", "Incarnation", base.HEX, nil, nil, "Random per start of the sending endpoint")},
    {name = "features", offset = 8, size = 8, read = "little",
      proto = ProtoField.uint64("ethernot.parameters.features", "Features", base.HEX, nil, nil, "Features the sender has"), bits = {
      ProtoField.bool("ethernot.parameters.features.psk", "psk", 64, nil, 0x1),
      ProtoField.bool("ethernot.parameters.features.whole_address_space", "whole_address_space", 64, nil, 0x2),
      ProtoField.bool("ethernot.parameters.features.queue_pair", "queue_pair", 64, nil, 0x4),
      ProtoField.bool("ethernot.parameters.features.patch", "patch", 64, nil, 0x8),
    }},
    {name = "epoch", offset = 16, size = 2, read = "little",
      proto = ProtoField.uint16("ethernot.parameters.epoch", "Epoch", base.HEX, nil, nil, "What the peer puts into every frame to the sender")},
    {name = "links_max", offset = 18, size = 2, read = "little", min = 1, max = 16,
      proto = ProtoField.uint16("ethernot.parameters.links_max", "Links max", base.DEC, nil, nil, "Links the sender accepts on this connection")},
    {name = "frame_bytes_max", offset = 20, size = 2, read = "little", min = 256, max = 65507,
      proto = ProtoField.uint16("ethernot.parameters.frame_bytes_max", "Frame bytes max", base.DEC, nil, nil, "Largest frame the sender receives (bytes)")},
    {name = "read_depth", offset = 22, size = 2, read = "little", min = 0, max = 4096,
      proto = ProtoField.uint16("ethernot.parameters.read_depth", "Read depth", base.DEC, nil, nil, "Reads and atomics the sender serves at a time")},
    {name = "operation_window", offset = 24, size = 4, read = "little", min = 1, max = 65536,
      proto = ProtoField.uint32("ethernot.parameters.operation_window", "Operation window", base.DEC, nil, nil, "Operations the sender tracks beyond the last delivered one")},
    {name = "order_pool_bytes", offset = 28, size = 4, read = "little",
      proto = ProtoField.uint32("ethernot.parameters.order_pool_bytes", "Order pool bytes", base.DEC, nil, nil, "Room for frames of operations that must wait (bytes)")},
    {name = "receive_buffer_bytes", offset = 32, size = 4, read = "little",
      proto = ProtoField.uint32("ethernot.parameters.receive_buffer_bytes", "Receive buffer bytes", base.DEC, nil, nil, "Room for frames in flight on one link (bytes)")},
    {name = "ack_delay_max_ns", offset = 36, size = 4, read = "little",
      proto = ProtoField.uint32("ethernot.parameters.ack_delay_max_ns", "Ack delay max ns", base.DEC, nil, nil, "Longest time the sender holds back an acknowledgement (ns)")},
    {name = "receive_credit", offset = 40, size = 4, read = "little",
      proto = ProtoField.uint32("ethernot.parameters.receive_credit", "Receive credit", base.DEC, nil, nil, "Message number up to which (exclusive) receives are posted")},
    {name = "service", offset = 44, size = 4, read = "little",
      proto = ProtoField.uint32("ethernot.parameters.service", "Service", base.DEC, nil, nil, "Which listener of the endpoint is meant; 0 in Accept")},
  }},
  cookie = {bytes = 24, fields = {
    {name = "cookie", offset = 0, size = 24, read = "bytes",
      proto = ProtoField.bytes("ethernot.handshake.cookie", "Cookie", base.NONE, "Proves that the initiator receives at its address")},
  }},
  counts = {bytes = 8, fields = {
    {name = "addresses", offset = 0, size = 1, read = "little", min = 0, max = 16,
      proto = ProtoField.uint8("ethernot.handshake.addresses", "Addresses", base.DEC, nil, nil, "Addresses that follow")},
    {name = "private_length", offset = 1, size = 2, read = "little", min = 0, max = 512,
      proto = ProtoField.uint16("ethernot.handshake.private_length", "Private length", base.DEC, nil, nil, "Length of the private data (bytes)")},
  }},
  reject = {bytes = 8, fields = {
    {name = "reason", offset = 0, size = 2, read = "little",
      proto = ProtoField.uint16("ethernot.handshake.reject.reason", "Reason", base.DEC, REJECT_REASONS, nil, "Why the connection is refused")},
    {name = "private_length", offset = 2, size = 2, read = "little", min = 0, max = 512,
      proto = ProtoField.uint16("ethernot.handshake.reject.private_length", "Private length", base.DEC, nil, nil, "Length of the private data (bytes)")},
  }},
  moved = {bytes = 24, fields = {
    {name = "address", offset = 0, size = 20, read = "bytes",
      proto = ProtoField.bytes("ethernot.handshake.moved.address", "Address", base.NONE, "Endpoint that has the service")},
    {name = "service", offset = 20, size = 4, read = "little",
      proto = ProtoField.uint32("ethernot.handshake.moved.service", "Service", base.DEC, nil, nil, "The service there")},
  }},
  reset = {bytes = 8, fields = {
    {name = "epoch", offset = 0, size = 2, read = "little",
      proto = ProtoField.uint16("ethernot.handshake.reset.epoch", "Epoch", base.HEX, nil, nil, "Epoch of the frame that found no connection")},
    {name = "packet", offset = 4, size = 4, read = "little",
      proto = ProtoField.uint32("ethernot.handshake.reset.packet", "Packet", base.DEC, nil, nil, "Packet number of the frame that found no connection")},
  }},
  version_mismatch = {bytes = 4, fields = {
    {name = "lowest", offset = 0, size = 2, read = "little",
      proto = ProtoField.uint16("ethernot.handshake.versions.lowest", "Lowest", base.DEC, nil, nil, "Lowest version the sender speaks")},
    {name = "highest", offset = 2, size = 2, read = "little",
      proto = ProtoField.uint16("ethernot.handshake.versions.highest", "Highest", base.DEC, nil, nil, "Highest version the sender speaks")},
  }},
  datagram = {bytes = 16, fields = {
    {name = "kind", offset = 0, size = 1, read = "little", min = 10, max = 10,
      proto = ProtoField.uint8("ethernot.datagram.kind", "Kind", base.DEC, KINDS, nil, "10, a datagram")},
    {name = "flags", offset = 1, size = 1, read = "little",
      proto = ProtoField.uint8("ethernot.datagram.flags", "Flags", base.HEX, nil, nil, "SOLICITED and IMMEDIATE; others are 0"), bits = {
      ProtoField.bool("ethernot.datagram.flags.last", "LAST", 8, nil, 0x1),
      ProtoField.bool("ethernot.datagram.flags.fence_before", "FENCE_BEFORE", 8, nil, 0x2),
      ProtoField.bool("ethernot.datagram.flags.fence_after", "FENCE_AFTER", 8, nil, 0x4),
      ProtoField.bool("ethernot.datagram.flags.strict", "STRICT", 8, nil, 0x8),
      ProtoField.bool("ethernot.datagram.flags.immediate", "IMMEDIATE", 8, nil, 0x10),
      ProtoField.bool("ethernot.datagram.flags.ack_now", "ACK_NOW", 8, nil, 0x20),
      ProtoField.bool("ethernot.datagram.flags.ack", "ACK", 8, nil, 0x40),
      ProtoField.bool("ethernot.datagram.flags.solicited", "SOLICITED", 8, nil, 0x80),
    }},
    {name = "destination", offset = 2, size = 3, read = "little",
      proto = ProtoField.uint24("ethernot.datagram.destination", "Destination", base.HEX, nil, nil, "Queue pair number of the receiver")},
    {name = "source", offset = 5, size = 3, read = "little",
      proto = ProtoField.uint24("ethernot.datagram.source", "Source", base.HEX, nil, nil, "Queue pair number of the sender")},
    {name = "key", offset = 8, size = 4, read = "little",
      proto = ProtoField.uint32("ethernot.datagram.key", "Key", base.HEX, nil, nil, "Queue key of the receiver")},
    {name = "immediate", offset = 12, size = 4, read = "little",
      proto = ProtoField.uint32("ethernot.datagram.immediate", "Immediate", base.HEX, nil, nil, "Delivered with the completion if IMMEDIATE is set, else 0")},
  }},
}

local KIND_LAYOUTS = {
  [1] = {headers = {}, required = 64, forbidden = 16, with_last = 0, immediate = "immediate", rest = "nothing"},
  [2] = {headers = {}, required = 0, forbidden = 16, with_last = 0, immediate = "immediate", rest = "messages"},
  [3] = {headers = {"operation", "offset", "tagged"}, required = 0, forbidden = 0, with_last = 0, immediate = "immediate", rest = "payload"},
  [4] = {headers = {"operation", "length", "tagged"}, required = 1, forbidden = 16, with_last = 0, immediate = "immediate", rest = "nothing"},
  [5] = {headers = {"operation", "offset"}, required = 0, forbidden = 16, with_last = 0, immediate = "immediate", rest = "payload"},
  [6] = {headers = {"operation", "offset", "message"}, required = 0, forbidden = 0, with_last = 0, immediate = "immediate", rest = "payload"},
  [7] = {headers = {"operation", "opcode", "tagged", "operands"}, required = 1, forbidden = 16, with_last = 0, immediate = "immediate", rest = "nothing"},
  [8] = {headers = {"operation", "value"}, required = 1, forbidden = 16, with_last = 0, immediate = "immediate", rest = "nothing"},
  [9] = {headers = {}, required = 0, forbidden = 80, with_last = 0, immediate = "immediate", rest = "padding"},
  [11] = {headers = {"operation", "offset", "message"}, required = 0, forbidden = 0, with_last = 16, immediate = "invalidated", rest = "payload"},
  [12] = {headers = {"operation", "offset", "tagged"}, required = 0, forbidden = 8, with_last = 0, immediate = "immediate", rest = "records"},
}

local STEP_LAYOUTS = {
  [1] = {"parameters", "cookie", "counts"},
  [2] = {"cookie"},
  [3] = {"parameters", "counts"},
  [4] = {"reject"},
  [5] = {},
  [6] = {"reset"},
  [7] = {"version_mismatch"},
}

local CONTROL_LAYOUTS = {
  [0] = {body = nil, tail_bytes_max = 255},
  [1] = {body = nil, tail_bytes_max = 0},
  [2] = {body = "path", tail_bytes_max = 0},
  [3] = {body = "path", tail_bytes_max = 0},
  [4] = {body = "link_status", tail_bytes_max = 0},
  [5] = {body = "close", tail_bytes_max = 128},
  [6] = {body = nil, tail_bytes_max = 0},
  [7] = {body = "address", tail_bytes_max = 0},
  [8] = {body = "links", tail_bytes_max = 0},
  [9] = {body = "gone", tail_bytes_max = 0},
  [10] = {body = "not_ready", tail_bytes_max = 0},
  [11] = {body = nil, tail_bytes_max = 0},
}

local ethernot = Proto("ethernot", "Ethernot edge protocol")

local payload_field = ProtoField.bytes("ethernot.payload", "Payload")
local payload_length_field = ProtoField.uint32("ethernot.payload.length", "Payload length")
local word_field = ProtoField.uint64("ethernot.ack.block.bitmap", "Bitmap word", base.HEX)
local private_field = ProtoField.bytes("ethernot.private_data", "Private data")
local body_field = ProtoField.bytes("ethernot.control.body", "Body")
local ipv4_field = ProtoField.ipv4("ethernot.address.ipv4", "IPv4 address")
local ipv6_field = ProtoField.ipv6("ethernot.address.ipv6", "IPv6 address")
local mac_field = ProtoField.ether("ethernot.address.mac", "MAC address")

local all_fields = {
  payload_field, payload_length_field, word_field, private_field, body_field, ipv4_field,
  ipv6_field, mac_field,
}
for _, layout in pairs(LAYOUTS) do
  for _, field in ipairs(layout.fields) do
    all_fields[#all_fields + 1] = field.proto
    for _, bit in ipairs(field.bits or {}) do all_fields[#all_fields + 1] = bit end
  end
end
ethernot.fields = all_fields

local malformed = ProtoExpert.new("ethernot.malformed", "Malformed frame",
  expert.group.MALFORMED, expert.severity.ERROR)
local other_version = ProtoExpert.new("ethernot.other_version", "Frame of another version",
  expert.group.UNDECODED, expert.severity.WARN)
local cut = ProtoExpert.new("ethernot.cut", "Frame cut by the capture",
  expert.group.UNDECODED, expert.severity.NOTE)
ethernot.experts = {malformed, other_version, cut}

local envelope = Proto("ethernot_envelope", "Ethernot envelope on Ethernet")
local checksum_status_field = ProtoField.string("ethernot.envelope.checksum.status",
  "Checksum status")
envelope.fields = {checksum_status_field}
local bad_checksum = ProtoExpert.new("ethernot.envelope.checksum.bad", "Wrong checksum",
  expert.group.CHECKSUM, expert.severity.ERROR)
envelope.experts = {bad_checksum}

envelope.prefs.ethertype = Pref.uint("EtherType", ETHERTYPE_DEFAULT,
  "Frames of this EtherType hold an envelope; 0 for none")

ethernot.prefs.udp_port = Pref.uint("UDP port", 0,
  "Every datagram from or to this port is a frame; 0 for none")

local LAST, IMMEDIATE, ACK
for mask, name in pairs(FLAGS) do
  if name == "LAST" then LAST = mask end
  if name == "IMMEDIATE" then IMMEDIATE = mask end
  if name == "ACK" then ACK = mask end
end
local OPERATION_BYTES_MAX = 0x80000000

-- Ends the dissection of a frame. The expert information shows the text.
local function fail(info, text, ...)
  error({info = info, text = string.format(text, ...)}, 0)
end

-- Fails if fewer than `bytes` bytes follow at `at`.
local function need(tvb, at, bytes, what)
  if at + bytes > tvb:reported_len() then
    fail(malformed, "%s needs %d bytes and %d are left", what, bytes, tvb:reported_len() - at)
  end
  if at + bytes > tvb:captured_len() then fail(cut, "%s was not captured", what) end
end

local function has(flags, mask)
  return math.floor(flags / mask) % 2 == 1
end

-- Adds the fields of a layout that begins at `at`, and stores their values in `values`. Returns
-- the end of the layout.
local function add_layout(tree, tvb, key, at, values)
  local layout = LAYOUTS[key]
  need(tvb, at, layout.bytes, key)
  for _, field in ipairs(layout.fields) do
    local range = tvb(at + field.offset, field.size)
    local value, item
    if field.read == "bytes" then
      value = range
      item = tree:add(field.proto, range)
    elseif field.read == "big" then
      value = range:uint()
      item = tree:add(field.proto, range)
    else
      if field.size == 8 then value = range:le_uint64() else value = range:le_uint() end
      item = tree:add_le(field.proto, range)
    end
    if field.min and (value < field.min or value > field.max) then
      fail(malformed, "%s is %d, not %d to %d", field.name, value, field.min, field.max)
    end
    for _, bit in ipairs(field.bits or {}) do item:add_le(bit, range) end
    values[field.name] = value
  end
  return at + layout.bytes
end

local function add_address(tree, tvb, at)
  need(tvb, at, LAYOUTS.address.bytes, "address")
  local branch = tree:add(ethernot, tvb(at, LAYOUTS.address.bytes), "Address")
  local values = {}
  add_layout(branch, tvb, "address", at, values)
  local host = at + LAYOUTS.address.bytes - 16
  local used, shown
  if values.family == 4 then
    used, shown = 4, tostring(tvb(host, 4):ipv4())
    branch:add(ipv4_field, tvb(host, 4))
  elseif values.family == 6 then
    used, shown = 16, "[" .. tostring(tvb(host, 16):ipv6()) .. "]"
    branch:add(ipv6_field, tvb(host, 16))
  elseif values.family == 1 then
    used, shown = 6, tostring(tvb(host, 6):ether())
    branch:add(mac_field, tvb(host, 6))
  elseif values.family == 2 then
    used, shown = 16, tostring(tvb(host, 8):bytes()) .. "/" .. tostring(tvb(host + 8, 8):bytes())
  else
    fail(malformed, "address of unknown family %d", values.family)
  end
  local zero = tvb(at + 1, 1):uint() == 0
  for unused = used, 15 do zero = zero and tvb(host + unused, 1):uint() == 0 end
  if not zero then fail(malformed, "address with bytes its family does not use") end
  branch:append_text(": " .. shown .. ":" .. values.port)
  return at + LAYOUTS.address.bytes
end

local function add_ack_section(tree, tvb, at, info)
  need(tvb, at, LAYOUTS.ack_section.bytes, "ack section")
  local branch = tree:add(ethernot, tvb(at), "Acknowledgement")
  local section = {}
  local start = at
  at = add_layout(branch, tvb, "ack_section", at, section)
  info[#info + 1] = "delivered<" .. section.delivered .. " credit<" .. section.credit
  local seen = {}
  for _ = 1, section.blocks do
    need(tvb, at, LAYOUTS.ack_block.bytes, "link block")
    local block = {}
    local block_start = at
    local leaf = branch:add(ethernot, tvb(at), "Link block")
    at = add_layout(leaf, tvb, "ack_block", at, block)
    if seen[block.link] then fail(malformed, "two blocks for link %d", block.link) end
    seen[block.link] = true
    need(tvb, at, 8 * block.words, "bitmap")
    for _ = 1, block.words do
      leaf:add_le(word_field, tvb(at, 8))
      at = at + 8
    end
    leaf:set_len(at - block_start)
    local text = string.format("link %d to %d run %d", block.link, block.largest, block.run)
    leaf:append_text(": " .. text)
    leaf:append_text(string.format(", delay %d ns", block.delay * 64))
    info[#info + 1] = "[" .. text .. "]"
  end
  branch:set_len(at - start)
  return at
end

local function add_control_messages(tree, tvb, at, info)
  local length = tvb:reported_len()
  if at == length then fail(malformed, "control frame without a message") end
  while at < length do
    local message = {}
    need(tvb, at, LAYOUTS.control_message.bytes, "control message")
    local branch = tree:add(ethernot, tvb(at), "Control message")
    local start = at
    at = add_layout(branch, tvb, "control_message", at, message)
    need(tvb, at, message.length, "body of a control message")
    branch:set_len(at + message.length - start)
    local name = CONTROL_TYPES[message.type] or ("type " .. message.type)
    branch:append_text(": " .. name)
    info[#info + 1] = name
    local layout = CONTROL_LAYOUTS[message.type]
    if not layout then
      if message.length > 0 then branch:add(body_field, tvb(at, message.length)) end
    else
      local fields_bytes = layout.body and LAYOUTS[layout.body].bytes or 0
      local tail = message.length - fields_bytes
      if tail < 0 or tail > layout.tail_bytes_max then
        fail(malformed, "%s with a body of %d bytes", name, message.length)
      end
      local values = {}
      if layout.body == "address" then
        add_address(branch, tvb, at)
      elseif layout.body then
        add_layout(branch, tvb, layout.body, at, values)
      end
      if tail > 0 then
        branch:add(layout.body and private_field or body_field, tvb(at + fields_bytes, tail))
      end
      if values.reason then
        local reason = CLOSE_REASONS[values.reason] or values.reason
        info[#info + 1] = "(" .. reason .. ", operation " .. values.operation .. ")"
      elseif values.status then
        info[#info + 1] = "(link " .. values.link .. " " .. LINK_STATUSES[values.status] .. ")"
      end
    end
    at = at + message.length
  end
end

-- Adds the records of a Patch (protocol.md 3.6), and checks them.
local function add_records(tree, tvb, at, address)
  local length = tvb:reported_len()
  local before
  if address:tonumber() % 4 ~= 0 then fail(malformed, "area of a Patch not aligned to 4 bytes") end
  while at < length do
    local record = {}
    need(tvb, at, LAYOUTS.patch_record.bytes, "record of a Patch")
    local branch = tree:add(ethernot, tvb(at), "Record")
    local start = at
    at = add_layout(branch, tvb, "patch_record", at, record)
    if before and record.block <= before then
      fail(malformed, "block %d of a Patch does not ascend", record.block)
    end
    before = record.block
    local count, rest, last = 0, record.bitmap, -1
    for bit = 0, 31 do
      if rest % 2 == 1 then count, last = count + 1, bit end
      rest = math.floor(rest / 2)
    end
    need(tvb, at, 4 * count, "words of a Patch")
    if count > 0 then branch:add(payload_field, tvb(at, 4 * count)) end
    at = at + 4 * count
    branch:set_len(at - start)
    branch:append_text(string.format(": block %d, %d words", record.block, count))
    local bytes = UInt64(record.block * 128 + 4 * (last + 1), 0)
    if address + bytes < address then fail(malformed, "remote address wraps") end
  end
end

-- Checks the rules of protocol.md 3.2 about fields that depend on each other.
local function check_ranges(values, flags, payload_length, rest)
  local offset, length = values.offset, values.length or payload_length
  if rest == "payload" or rest == "records" then
    if offset + length > OPERATION_BYTES_MAX then
      fail(malformed, "operation reaches beyond 2^31 bytes")
    end
    if length == 0 and not (offset == 0 and has(flags, LAST)) then
      fail(malformed, "frame without payload at offset %d", offset)
    end
  end
  local address = values.address
  if address and rest ~= "records" then
    if offset and address < UInt64(offset, 0) then
      fail(malformed, "remote address is less than the offset")
    end
    if values.opcode then length = 8 end
    if address + UInt64(length, 0) < address then
      fail(malformed, "remote address wraps")
    end
  end
end

-- Adds the text of the Info column for the header of an operation.
local function describe(values, info)
  for _, name in ipairs({"operation", "offset", "length", "message"}) do
    if values[name] then info[#info + 1] = name .. "=" .. values[name] end
  end
  if values.opcode then info[#info + 1] = ATOMIC_OPCODES[values.opcode] end
  if values.key then info[#info + 1] = string.format("key=0x%08x", values.key) end
  for _, name in ipairs({"address", "operand", "compare", "value"}) do
    if values[name] then info[#info + 1] = name .. "=0x" .. values[name]:tohex() end
  end
  if values.immediate then info[#info + 1] = string.format("imm=0x%08x", values.immediate) end
  if values.invalidated then
    info[#info + 1] = string.format("invalidated=0x%08x", values.invalidated)
  end
end

local function dissect_connection(tvb, tree, info)
  local values = {}
  local at = add_layout(tree, tvb, "common", 0, values)
  local first, flags = tvb(0, 1):uint(), values.flags
  local kind = first % 16
  local layout = KIND_LAYOUTS[kind]
  if not layout then fail(malformed, "reserved kind %d", kind) end
  info[#info + 1] = KINDS[kind]
  info[#info + 1] = "link=" .. math.floor(first / 16) .. " packet=" .. values.packet
  tree:append_text(", " .. KINDS[kind])
  for bit = 0, 7 do
    local mask = math.floor(2 ^ bit)
    if has(layout.required, mask) and not has(flags, mask) then
      fail(malformed, "%s without %s", KINDS[kind], FLAGS[mask])
    end
    if has(flags, LAST) and has(layout.with_last, mask) and not has(flags, mask) then
      fail(malformed, "%s with LAST and without %s", KINDS[kind], FLAGS[mask])
    end
    if has(layout.forbidden, mask) and has(flags, mask) then
      fail(malformed, "%s with %s", KINDS[kind], FLAGS[mask])
    end
  end
  if has(flags, IMMEDIATE) and not has(flags, LAST) then
    fail(malformed, "IMMEDIATE without LAST")
  end
  for _, key in ipairs(layout.headers) do at = add_layout(tree, tvb, key, 0, values) end
  if has(flags, IMMEDIATE) then at = add_layout(tree, tvb, layout.immediate, at, values) end
  describe(values, info)
  local acks = {}
  if has(flags, ACK) then at = add_ack_section(tree, tvb, at, acks) end

  local length = tvb:reported_len() - at
  check_ranges(values, flags, length, layout.rest)
  if layout.rest == "nothing" and length > 0 then
    fail(malformed, "%d bytes follow the end of %s", length, KINDS[kind])
  elseif layout.rest == "messages" then
    add_control_messages(tree, tvb, at, info)
  elseif layout.rest == "records" then
    add_records(tree, tvb, at, values.address)
    tree:add(payload_length_field, length):set_generated()
    info[#info + 1] = "bytes=" .. length
  elseif layout.rest ~= "nothing" then
    if at < tvb:captured_len() then tree:add(payload_field, tvb(at)) end
    tree:add(payload_length_field, length):set_generated()
    info[#info + 1] = "bytes=" .. length
  end
  local set = {}
  for bit = 0, 7 do
    local mask = math.floor(2 ^ bit)
    if mask ~= ACK and has(flags, mask) then set[#set + 1] = FLAGS[mask] end
  end
  if #set > 0 then info[#info + 1] = table.concat(set, ",") end
  for _, text in ipairs(acks) do info[#info + 1] = text end
end

-- Connections that captured handshakes have announced: connection id × 2^16 + epoch.
local announced = {}

local function dissect_handshake(tvb, tree, info)
  local values = {}
  local at = add_layout(tree, tvb, "preamble", 0, values)
  if tvb(0, 1):uint() ~= 0 then fail(malformed, "handshake frame with a link index") end
  if tvb(4, 4):uint() ~= MAGIC then fail(malformed, "wrong magic") end
  local step = STEPS[values.step]
  info[#info + 1] = step
  info[#info + 1] = string.format("destination=0x%08x source=0x%08x", values.destination,
    values.source)
  tree:append_text(", " .. step)
  if values.version ~= VERSION and step ~= "VersionMismatch" then
    fail(other_version, "version %d, not %d", values.version, VERSION)
  end
  for _, key in ipairs(STEP_LAYOUTS[values.step]) do
    local branch = tree
    if key == "parameters" then
      need(tvb, at, LAYOUTS[key].bytes, key)
      branch = tree:add(ethernot, tvb(at, LAYOUTS[key].bytes), "Parameters")
    end
    at = add_layout(branch, tvb, key, at, values)
  end
  if step == "Accept" and values.service ~= 0 then fail(malformed, "service in Accept") end
  if step == "Reject" then info[#info + 1] = REJECT_REASONS[values.reason] or values.reason end
  if values.lowest then info[#info + 1] = values.lowest .. " to " .. values.highest end
  if values.packet then info[#info + 1] = "packet=" .. values.packet end
  if values.links_max then
    announced[values.source * 65536 + values.epoch] = true
    info[#info + 1] = string.format("epoch=0x%04x links<=%d frame<=%d", values.epoch,
      values.links_max, values.frame_bytes_max)
  end
  for _ = 1, values.addresses or 0 do at = add_address(tree, tvb, at) end
  local private_length = values.private_length or 0
  need(tvb, at, private_length, "private data")
  if private_length > 0 then tree:add(private_field, tvb(at, private_length)) end
  if step == "Reject" and values.reason == MOVED and private_length == LAYOUTS.moved.bytes then
    add_layout(tree, tvb, "moved", at, values)
    info[#info + 1] = "service=" .. values.service
  end
  at = at + private_length
  if at < tvb:reported_len() then
    fail(malformed, "%d bytes follow the end of the frame", tvb:reported_len() - at)
  end
end

local function dissect_datagram(tvb, tree, info)
  local values = {}
  local at = add_layout(tree, tvb, "datagram", 0, values)
  local length = tvb:reported_len() - at
  info[#info + 1] = string.format("Datagram from=0x%06x to=0x%06x", values.source, values.destination)
  if has(values.flags, IMMEDIATE) then
    info[#info + 1] = string.format("imm=0x%08x", values.immediate)
  end
  tree:append_text(", Datagram")
  if at < tvb:captured_len() then tree:add(payload_field, tvb(at)) end
  tree:add(payload_length_field, length):set_generated()
  info[#info + 1] = "bytes=" .. length
end

-- Calls a function that may fail. The expert information and the Info column show the error text.
local function guard(pinfo, branch, call)
  local ok, problem = pcall(call)
  if ok then return end
  if type(problem) ~= "table" then error(problem, 0) end
  branch:add_proto_expert_info(problem.info, problem.text)
  pinfo.cols.info:append(" [" .. problem.text .. "]")
end

local function dissect(tvb, pinfo, tree)
  pinfo.cols.protocol = "Ethernot"
  local branch = tree:add(ethernot, tvb())
  local info = {}
  local kind = tvb:captured_len() > 0 and tvb(0, 1):uint() % 16
  local part = dissect_connection
  if kind == 0 then part = dissect_handshake end
  if kind == DATAGRAM then part = dissect_datagram end
  local ok, problem = pcall(part, tvb, branch, info)
  pinfo.cols.info = table.concat(info, " ")
  if not ok then guard(pinfo, branch, function() error(problem, 0) end) end
  return tvb:captured_len()
end

-- Computes CRC-32C, one byte after the other.
local bits = bit32 or bit
local crc_table = {}
for byte = 0, 255 do
  local crc = byte
  for _ = 1, 8 do
    local low = crc % 2
    crc = bits.rshift(crc, 1)
    if low == 1 then crc = bits.bxor(crc, 0x82f63b78) end
  end
  crc_table[byte] = crc % 0x100000000
end

local function crc32c(bytes)
  local crc = 0xffffffff
  for index = 0, bytes:len() - 1 do
    local low = bits.bxor(crc % 256, bytes:get_index(index))
    crc = bits.bxor(math.floor(crc / 256), crc_table[low]) % 0x100000000
  end
  return 0xffffffff - crc
end

-- Checks the checksum, if the capture contains all bytes that it covers.
local function check_checksum(tvb, branch, at, length, announced_checksum)
  if at + length > tvb:captured_len() then return end
  local covered = tvb(0, LAYOUTS.envelope.bytes - 4):bytes()
  if length > 0 then covered = covered .. tvb(at, length):bytes() end
  local computed = crc32c(covered)
  local is_good = computed == announced_checksum
  branch:add(checksum_status_field, is_good and "good" or "bad"):set_generated()
  if not is_good then
    fail(bad_checksum, "checksum is 0x%08x, should be 0x%08x", announced_checksum, computed)
  end
end

function envelope.dissector(tvb, pinfo, tree)
  pinfo.cols.protocol = "Ethernot"
  pinfo.cols.info = ""
  local branch = tree:add(envelope, tvb(0, math.min(LAYOUTS.envelope.bytes, tvb:len())))
  guard(pinfo, branch, function()
    local values = {}
    local at = add_layout(branch, tvb, "envelope", 0, values)
    local kind = ENVELOPE_KINDS[values.envelope_kind]
    branch:append_text(string.format(", %s, port %d to %d", kind, values.source_port,
      values.destination_port))
    pinfo.cols.info = string.format("%s %d to %d", kind, values.source_port,
      values.destination_port)
    need(tvb, at, values.length, "content of an envelope")
    check_checksum(tvb, branch, at, values.length, values.checksum)
    if kind == "Frame" and values.length > 0 then
      dissect(tvb(at, values.length):tvb(), pinfo, tree)
    end
  end)
  return tvb:captured_len()
end

function ethernot.dissector(tvb, pinfo, tree)
  return dissect(tvb, pinfo, tree)
end

function ethernot.init()
  announced = {}
end

local ethertypes = DissectorTable.get("ethertype")
local ethertype_in_use = 0
local function use_ethertype()
  if ethertype_in_use ~= 0 then ethertypes:remove(ethertype_in_use, envelope) end
  ethertype_in_use = envelope.prefs.ethertype
  if ethertype_in_use ~= 0 then ethertypes:add(ethertype_in_use, envelope) end
end
envelope.prefs_changed = use_ethertype
use_ethertype()

local udp_ports = DissectorTable.get("udp.port")
local port_in_use = 0
function ethernot.prefs_changed()
  if port_in_use ~= 0 then udp_ports:remove(port_in_use, ethernot) end
  port_in_use = ethernot.prefs.udp_port
  if port_in_use ~= 0 then udp_ports:add(port_in_use, ethernot) end
end

-- Returns whether Ethernot has written the capture: then every datagram is a frame.
local interface_description = Field.new("frame.interface_description")
local function is_own_capture()
  local described = interface_description()
  return described ~= nil and described.value == "Ethernot edge protocol"
end

ethernot:register_heuristic("udp", function(tvb, pinfo, tree)
  local length = tvb:captured_len()
  if is_own_capture() then
    dissect(tvb, pinfo, tree)
    return true
  end
  if length >= LAYOUTS.preamble.bytes and tvb(0, 1):uint() == 0 and tvb(4, 4):uint() == MAGIC then
    pinfo.conversation = ethernot
    dissect(tvb, pinfo, tree)
    return true
  end
  if length >= LAYOUTS.common.bytes and KIND_LAYOUTS[tvb(0, 1):uint() % 16]
    and announced[tvb(4, 4):le_uint() * 65536 + tvb(2, 2):le_uint()] then
    dissect(tvb, pinfo, tree)
    return true
  end
  return false
end)
