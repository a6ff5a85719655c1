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
