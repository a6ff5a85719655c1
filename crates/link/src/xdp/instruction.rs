//! The instructions of the kernel's virtual machine (RFC 9669) that the redirect program uses.

/// One instruction, in the kernel's format.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(C)]
pub(super) struct Instruction {
    operation: u8,
    /// Destination register in the low four bits, source register in the high four.
    registers: u8,
    offset: i16,
    immediate: i32,
}

const _: () = assert!(size_of::<Instruction>() == 8);

/// A register of the virtual machine. A call takes its arguments in R1 to R5, returns its result in
/// R0, and preserves R6 to R9.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(super) enum Register {
    R0 = 0,
    R1 = 1,
    R2 = 2,
    R3 = 3,
    R4 = 4,
    R6 = 6,
}

/// Number of bytes of a load, in the encoding of the operation.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(super) enum Width {
    Byte = 0x10,
    Half = 0x08,
    Word = 0x00,
}

/// The target of forward jumps. [`Assembler::place`] sets its position.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Label(u8);

/// A program under construction. It jumps forward only, to labels.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    code: Vec<Instruction>,
    /// Index and label of each jump that has no offset yet.
    jumps: Vec<(usize, Label)>,
    labels: u8,
}

impl Assembler {
    /// Creates a label to jump to.
    pub(super) fn label(&mut self) -> Label {
        self.labels += 1;
        Label(self.labels)
    }

    /// Places `label` at the next instruction.
    pub(super) fn place(&mut self, label: Label) {
        let here = self.code.len();
        for &(jump, _) in self.jumps.iter().filter(|(_, wanted)| *wanted == label) {
            // The offset counts from the instruction after the jump. A program has a few dozen
            // instructions, so the offset fits.
            self.code[jump].offset = ((here - jump - 1) as u16).cast_signed();
        }
        self.jumps.retain(|(_, wanted)| *wanted != label);
    }

    /// Appends `to = *(from + offset)`, in the byte order of the host.
    pub(super) fn load(&mut self, width: Width, to: Register, from: Register, offset: i16) {
        self.push(LOAD_MEMORY | width as u8, to, from, offset, 0);
    }

    /// Appends `to = from`.
    pub(super) fn copy(&mut self, to: Register, from: Register) {
        self.push(MOVE_REGISTER, to, from, 0, 0);
    }

    /// Appends `to = value`.
    pub(super) fn set(&mut self, to: Register, value: i32) {
        self.push(MOVE_VALUE, to, Register::R0, 0, value);
    }

    /// Appends `to += value`.
    pub(super) fn add(&mut self, to: Register, value: i32) {
        self.push(ADD_VALUE, to, Register::R0, 0, value);
    }

    /// Appends `to &= value`.
    pub(super) fn and(&mut self, to: Register, value: i32) {
        self.push(AND_VALUE, to, Register::R0, 0, value);
    }

    /// Appends a jump to `label` if `left > right`.
    pub(super) fn jump_if_greater(&mut self, left: Register, right: Register, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.push(JUMP_GREATER_REGISTER, left, right, 0, 0);
    }

    /// Appends a jump to `label` if `left != value`.
    pub(super) fn jump_unless_equal(&mut self, left: Register, value: u16, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.push(JUMP_NOT_EQUAL_VALUE, left, Register::R0, 0, i32::from(value));
    }

    /// Appends a jump to `label`.
    pub(super) fn jump(&mut self, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.push(JUMP_ALWAYS, Register::R0, Register::R0, 0, 0);
    }

    /// Appends an instruction that sets `to` to the map of this descriptor. The kernel resolves the
    /// descriptor when it loads the program.
    pub(super) fn load_map(&mut self, to: Register, descriptor: i32) {
        let registers = to as u8 | MAP_BY_DESCRIPTOR << 4;
        self.code.push(Instruction {
            operation: LOAD_DOUBLE,
            registers,
            offset: 0,
            immediate: descriptor,
        });
        self.push(0, Register::R0, Register::R0, 0, 0);
    }

    /// Appends a call of a kernel function.
    pub(super) fn call(&mut self, function: i32) {
        self.push(CALL, Register::R0, Register::R0, 0, function);
    }

    /// Appends the end of the program. Its result is R0.
    pub(super) fn exit(&mut self) {
        self.push(EXIT, Register::R0, Register::R0, 0, 0);
    }

    /// Returns the program.
    ///
    /// # Panics
    /// Panics if a label has jumps and was not placed.
    pub(super) fn finish(self) -> Vec<Instruction> {
        assert!(self.jumps.is_empty(), "labels without a place: {:?}", self.jumps);
        self.code
    }

    fn push(
        &mut self,
        operation: u8,
        destination: Register,
        source: Register,
        offset: i16,
        immediate: i32,
    ) {
        let registers = destination as u8 | (source as u8) << 4;
        self.code.push(Instruction { operation, registers, offset, immediate });
    }
}

// Operations. The low three bits are the class. The bits above are the mode, or the code and the
// source (RFC 9669, sections 3 to 5).
const LOAD_MEMORY: u8 = 0x61;
const LOAD_DOUBLE: u8 = 0x18;
const MOVE_REGISTER: u8 = 0xbf;
const MOVE_VALUE: u8 = 0xb7;
const ADD_VALUE: u8 = 0x07;
const AND_VALUE: u8 = 0x57;
const JUMP_ALWAYS: u8 = 0x05;
const JUMP_GREATER_REGISTER: u8 = 0x2d;
const JUMP_NOT_EQUAL_VALUE: u8 = 0x55;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// Source register value that marks the value of [`LOAD_DOUBLE`] as a descriptor.
const MAP_BY_DESCRIPTOR: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_are_relative_to_the_next_instruction() {
        let mut assembler = Assembler::default();
        let end = assembler.label();
        assembler.jump_unless_equal(Register::R2, 7, end);
        assembler.jump(end);
        assembler.set(Register::R0, 1);
        assembler.place(end);
        assembler.exit();
        let code = assembler.finish();
        assert_eq!(code.iter().map(|i| i.offset).collect::<Vec<_>>(), [2, 1, 0, 0]);
        assert_eq!((code[0].operation, code[0].registers, code[0].immediate), (0x55, 2, 7));
    }

    #[test]
    fn a_map_load_takes_two_instructions() {
        let mut assembler = Assembler::default();
        assembler.load_map(Register::R1, 9);
        let code = assembler.finish();
        assert_eq!(
            code,
            [
                Instruction { operation: 0x18, registers: 0x11, offset: 0, immediate: 9 },
                Instruction { operation: 0, registers: 0, offset: 0, immediate: 0 },
            ]
        );
    }
}
