//! Instructions of the kernel's virtual machine (RFC 9669), as many as the redirect program needs.

/// One instruction, in the form that the kernel reads.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(C)]
pub(super) struct Instruction {
    operation: u8,
    /// Destination in the low four bits, source in the high ones.
    registers: u8,
    offset: i16,
    immediate: i32,
}

const _: () = assert!(size_of::<Instruction>() == 8);

/// A register. A call takes its arguments in R1 to R5, answers in R0, and leaves R6 to R9 alone.
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

/// How many bytes a load takes, as its operation says it.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(super) enum Width {
    Byte = 0x10,
    Half = 0x08,
    Word = 0x00,
}

/// Somewhere behind a jump, placed later by [`Assembler::place`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Label(u8);

/// A program in the making. Jumps go forward only, to labels.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    code: Vec<Instruction>,
    /// Jumps whose offset is not known yet, and where they want to go.
    jumps: Vec<(usize, Label)>,
    labels: u8,
}

impl Assembler {
    /// A place to jump to.
    pub(super) fn label(&mut self) -> Label {
        self.labels += 1;
        Label(self.labels)
    }

    /// The next instruction is where jumps to `label` go.
    pub(super) fn place(&mut self, label: Label) {
        let here = self.code.len();
        for &(jump, _) in self.jumps.iter().filter(|(_, wanted)| *wanted == label) {
            // Counted from the instruction behind the jump; a program has a few dozen instructions.
            self.code[jump].offset = ((here - jump - 1) as u16).cast_signed();
        }
        self.jumps.retain(|(_, wanted)| *wanted != label);
    }

    /// `to = *(from + offset)`, in the byte order of the host.
    pub(super) fn load(&mut self, width: Width, to: Register, from: Register, offset: i16) {
        self.push(LOAD_MEMORY | width as u8, to, from, offset, 0);
    }

    /// `to = from`.
    pub(super) fn copy(&mut self, to: Register, from: Register) {
        self.push(MOVE_REGISTER, to, from, 0, 0);
    }

    /// `to = value`.
    pub(super) fn set(&mut self, to: Register, value: i32) {
        self.push(MOVE_VALUE, to, Register::R0, 0, value);
    }

    /// `to += value`.
    pub(super) fn add(&mut self, to: Register, value: i32) {
        self.push(ADD_VALUE, to, Register::R0, 0, value);
    }

    /// `to &= value`.
    pub(super) fn and(&mut self, to: Register, value: i32) {
        self.push(AND_VALUE, to, Register::R0, 0, value);
    }

    /// Goes to `label` if `left > right`.
    pub(super) fn jump_if_greater(&mut self, left: Register, right: Register, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.push(JUMP_GREATER_REGISTER, left, right, 0, 0);
    }

    /// Goes to `label` if `left != value`.
    pub(super) fn jump_unless_equal(&mut self, left: Register, value: u16, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.push(JUMP_NOT_EQUAL_VALUE, left, Register::R0, 0, i32::from(value));
    }

    /// Goes to `label`.
    pub(super) fn jump(&mut self, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.push(JUMP_ALWAYS, Register::R0, Register::R0, 0, 0);
    }

    /// `to = the map behind a descriptor`, which the kernel looks up when it loads the program.
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

    /// Calls a function of the kernel.
    pub(super) fn call(&mut self, function: i32) {
        self.push(CALL, Register::R0, Register::R0, 0, function);
    }

    /// Ends the program with R0 as its answer.
    pub(super) fn exit(&mut self) {
        self.push(EXIT, Register::R0, Register::R0, 0, 0);
    }

    /// The program.
    ///
    /// # Panics
    /// If a label was jumped to and never placed.
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

// Operations: class in the low three bits; mode or code and source above (RFC 9669, sections 3 to 5).
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
/// Says in the source register that the value of [`LOAD_DOUBLE`] is a descriptor.
const MAP_BY_DESCRIPTOR: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_are_counted_from_the_instruction_behind_them() {
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
    fn maps_take_two_places() {
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
