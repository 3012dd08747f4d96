//! WASI (preview 1) for guests whose compiler knows no other system: every function is there, and nothing can be done
//! with it.
//!
//! A small core module that is made here, instruction by instruction, and put into the component as the adapter of
//! [`NAME`]; only the functions that the guest imports stay. What it answers:
//!
//! - what is written to standard output and error goes to the host's log, a line each, at the levels info and warn;
//! - there are no arguments, no environment, no files (`EBADF` and `ENOTCAPABLE`), no sockets;
//! - the clock counts from 1970-01-01, a microsecond each time that it is asked; to sleep moves it and takes no time;
//! - random bytes are the same for each instance;
//! - to exit ends the call (it traps).
//!
//! It has no memory of its own and no state but the clock's and the random bytes'. It must never import anything but the
//! host's log.

use wasm_encoder::{
    BlockType, CodeSection, ConstExpr, EntityType, ExportKind, ExportSection, Function, FunctionSection,
    GlobalSection, GlobalType, ImportSection, InstructionSink, MemArg, MemoryType, Module, TypeSection,
    ValType,
};

/// The module that guests import.
pub(super) const NAME: &str = "wasi_snapshot_preview1";

/// Error numbers of WASI.
const SUCCESS: i32 = 0;
const BADF: i32 = 8;
const NOTCAPABLE: i32 = 76;

/// The indices of what the module has.
const LOG: u32 = 0;
const LINE: u32 = 1;
const CLOCK: u32 = 0;
const SEED: u32 = 1;

/// A parameter `i` is an i32, `I` an i64. All but `proc_exit` return an error number.
const FUNCTIONS: &[(&str, &str, Answer)] = &[
    ("args_get", "ii", Answer::Error(SUCCESS)),
    ("args_sizes_get", "ii", Answer::Code(none)),
    ("clock_res_get", "ii", Answer::Code(resolution)),
    ("clock_time_get", "iIi", Answer::Code(clock)),
    ("environ_get", "ii", Answer::Error(SUCCESS)),
    ("environ_sizes_get", "ii", Answer::Code(none)),
    ("fd_advise", "iIIi", Answer::Error(BADF)),
    ("fd_allocate", "iII", Answer::Error(BADF)),
    ("fd_close", "i", Answer::Error(BADF)),
    ("fd_datasync", "i", Answer::Error(BADF)),
    ("fd_fdstat_get", "ii", Answer::Code(terminal)),
    ("fd_fdstat_set_flags", "ii", Answer::Error(BADF)),
    ("fd_fdstat_set_rights", "iII", Answer::Error(BADF)),
    ("fd_filestat_get", "ii", Answer::Error(BADF)),
    ("fd_filestat_set_size", "iI", Answer::Error(BADF)),
    ("fd_filestat_set_times", "iIIi", Answer::Error(BADF)),
    ("fd_pread", "iiiIi", Answer::Error(BADF)),
    ("fd_prestat_dir_name", "iii", Answer::Error(BADF)),
    ("fd_prestat_get", "ii", Answer::Error(BADF)),
    ("fd_pwrite", "iiiIi", Answer::Error(BADF)),
    ("fd_read", "iiii", Answer::Error(BADF)),
    ("fd_readdir", "iiiIi", Answer::Error(BADF)),
    ("fd_renumber", "ii", Answer::Error(BADF)),
    ("fd_seek", "iIii", Answer::Error(BADF)),
    ("fd_sync", "i", Answer::Error(BADF)),
    ("fd_tell", "ii", Answer::Error(BADF)),
    ("fd_write", "iiii", Answer::Code(write)),
    ("path_create_directory", "iii", Answer::Error(NOTCAPABLE)),
    ("path_filestat_get", "iiiii", Answer::Error(NOTCAPABLE)),
    ("path_filestat_set_times", "iiiiIIi", Answer::Error(NOTCAPABLE)),
    ("path_link", "iiiiiii", Answer::Error(NOTCAPABLE)),
    ("path_open", "iiiiiIIii", Answer::Error(NOTCAPABLE)),
    ("path_readlink", "iiiiii", Answer::Error(NOTCAPABLE)),
    ("path_remove_directory", "iii", Answer::Error(NOTCAPABLE)),
    ("path_rename", "iiiiii", Answer::Error(NOTCAPABLE)),
    ("path_symlink", "iiiii", Answer::Error(NOTCAPABLE)),
    ("path_unlink_file", "iii", Answer::Error(NOTCAPABLE)),
    ("poll_oneoff", "iiii", Answer::Code(poll)),
    ("random_get", "ii", Answer::Code(random)),
    ("sched_yield", "", Answer::Error(SUCCESS)),
    ("sock_accept", "iii", Answer::Error(NOTCAPABLE)),
    ("sock_recv", "iiiiii", Answer::Error(NOTCAPABLE)),
    ("sock_send", "iiiii", Answer::Error(NOTCAPABLE)),
    ("sock_shutdown", "ii", Answer::Error(NOTCAPABLE)),
    ("proc_raise", "i", Answer::End),
    ("proc_exit", "i", Answer::End),
];

#[derive(Clone, Copy)]
enum Answer {
    /// This error number.
    Error(i32),
    /// What this writes, which leaves an error number.
    Code(fn(&mut InstructionSink<'_>)),
    /// A trap.
    End,
}

fn at(offset: u64) -> MemArg {
    MemArg { offset, align: 0, memory_index: 0 }
}

/// The module, not yet described.
pub(super) fn module() -> Vec<u8> {
    let mut types = TypeSection::new();
    types.ty().function([ValType::I32; 3], []);
    let mut imports = ImportSection::new();
    imports.import("anabranch:plugin/log@1.0.0", "log", EntityType::Function(0));
    let memory =
        MemoryType { minimum: 0, maximum: None, memory64: false, shared: false, page_size_log2: None };
    imports.import("env", "memory", EntityType::Memory(memory));
    let mut globals = GlobalSection::new();
    let counter = GlobalType { val_type: ValType::I64, mutable: true, shared: false };
    globals.global(counter, &ConstExpr::i64_const(0));
    globals.global(counter, &ConstExpr::i64_const(0));
    let mut functions = FunctionSection::new();
    let mut exports = ExportSection::new();
    let mut code = CodeSection::new();
    functions.function(0);
    code.function(&line());
    for (index, (name, parameters, answer)) in (1..).zip(FUNCTIONS) {
        let parameter = |letter| if letter == b'I' { ValType::I64 } else { ValType::I32 };
        let returns = if *name == "proc_exit" { &[][..] } else { &[ValType::I32] };
        types.ty().function(parameters.bytes().map(parameter), returns.iter().copied());
        functions.function(index);
        exports.export(name, ExportKind::Func, LINE + index);
        code.function(&body(*answer));
    }
    let mut module = Module::new();
    module.section(&types).section(&imports).section(&functions).section(&globals).section(&exports);
    module.section(&code);
    module.finish()
}

fn body(answer: Answer) -> Function {
    // More than each needs, after its parameters.
    let mut function = Function::new([(2, ValType::I32)]);
    let mut sink = function.instructions();
    match answer {
        Answer::Error(number) => {
            sink.i32_const(number);
        }
        Answer::Code(write) => write(&mut sink),
        Answer::End => {
            sink.unreachable();
        }
    }
    sink.end();
    function
}

/// Arguments, environment: `(count, size)`.
fn none(sink: &mut InstructionSink<'_>) {
    sink.local_get(0).i32_const(0).i32_store(at(0));
    sink.local_get(1).i32_const(0).i32_store(at(0));
    sink.i32_const(SUCCESS);
}

/// `(clock, result)`
fn resolution(sink: &mut InstructionSink<'_>) {
    sink.local_get(1).i64_const(1000).i64_store(at(0)).i32_const(SUCCESS);
}

/// `(clock, precision, result)`
fn clock(sink: &mut InstructionSink<'_>) {
    sink.global_get(CLOCK).i64_const(1000).i64_add().global_set(CLOCK);
    sink.local_get(2).global_get(CLOCK).i64_store(at(0)).i32_const(SUCCESS);
}

/// `(descriptor, result)`: standard output and error are terminals, so that C writes each line as it ends.
fn terminal(sink: &mut InstructionSink<'_>) {
    const CHARACTER_DEVICE: i32 = 2;
    const RIGHT_TO_WRITE: i64 = 1 << 6;
    sink.local_get(0).i32_const(2).i32_gt_u().if_(BlockType::Empty).i32_const(BADF).return_().end();
    sink.local_get(1).i32_const(CHARACTER_DEVICE).i32_store(at(0));
    sink.local_get(1).i32_const(0).i32_store(at(4));
    sink.local_get(1).i64_const(RIGHT_TO_WRITE).i64_store(at(8));
    sink.local_get(1).i64_const(0).i64_store(at(16)).i32_const(SUCCESS);
}

/// `(buffer, size)`; a xorshift generator, a byte at a time.
fn random(sink: &mut InstructionSink<'_>) {
    sink.block(BlockType::Empty).loop_(BlockType::Empty);
    sink.local_get(1).i32_eqz().br_if(1);
    sink.global_get(SEED).i64_const(0x9e37_79b9_7f4a_7c15_u64.cast_signed()).i64_add().global_set(SEED);
    sink.local_get(0);
    sink.global_get(SEED).global_get(SEED).i64_const(29).i64_shr_u().i64_xor();
    sink.i64_const(0xbf58_476d_1ce4_e5b9_u64.cast_signed()).i64_mul().i64_const(56).i64_shr_u();
    sink.i32_wrap_i64().i32_store8(at(0));
    sink.local_get(0).i32_const(1).i32_add().local_set(0);
    sink.local_get(1).i32_const(1).i32_sub().local_set(1);
    sink.br(0).end().end().i32_const(SUCCESS);
}

/// `(subscriptions, events, count, result)`: the first has to be a clock's, which moves there and is the event.
fn poll(sink: &mut InstructionSink<'_>) {
    sink.local_get(2).i32_eqz().local_get(0).i32_load8_u(at(8)).i32_or();
    sink.if_(BlockType::Empty).i32_const(NOTCAPABLE).return_().end();
    // Unless the time is an absolute one.
    sink.local_get(0).i64_load(at(24));
    sink.i64_const(0).global_get(CLOCK).local_get(0).i32_load16_u(at(40)).i32_const(1).i32_and().select();
    sink.i64_add().global_set(CLOCK);
    sink.local_get(1).local_get(0).i64_load(at(0)).i64_store(at(0));
    sink.local_get(1).i64_const(0).i64_store(at(8));
    sink.local_get(1).i64_const(0).i64_store(at(16));
    sink.local_get(1).i64_const(0).i64_store(at(24));
    sink.local_get(3).i32_const(1).i32_store(at(0)).i32_const(SUCCESS);
}

/// `(descriptor, vectors, count, result)`
fn write(sink: &mut InstructionSink<'_>) {
    const SIZE: u32 = 4;
    const WRITTEN: u32 = 5;
    sink.local_get(0).i32_const(1).i32_sub().i32_const(1).i32_gt_u();
    sink.if_(BlockType::Empty).i32_const(BADF).return_().end();
    sink.block(BlockType::Empty).loop_(BlockType::Empty);
    sink.local_get(2).i32_eqz().br_if(1);
    sink.local_get(1).i32_load(at(4)).local_tee(SIZE);
    sink.local_get(WRITTEN).i32_add().local_set(WRITTEN);
    // Info is level 2, warn level 1.
    sink.i32_const(3).local_get(0).i32_sub().local_get(1).i32_load(at(0)).local_get(SIZE).call(LINE);
    sink.local_get(1).i32_const(8).i32_add().local_set(1);
    sink.local_get(2).i32_const(1).i32_sub().local_set(2);
    sink.br(0).end().end();
    sink.local_get(3).local_get(WRITTEN).i32_store(at(0)).i32_const(SUCCESS);
}

/// `(level, text, size)`: without the line break at its end, and nothing if that is all.
fn line() -> Function {
    let mut function = Function::new([]);
    let mut sink = function.instructions();
    sink.local_get(2).i32_eqz().if_(BlockType::Empty).return_().end();
    sink.local_get(2);
    sink.local_get(1).local_get(2).i32_add().i32_const(1).i32_sub().i32_load8_u(at(0));
    sink.i32_const(i32::from(b'\n')).i32_eq().i32_sub().local_tee(2);
    sink.i32_eqz().if_(BlockType::Empty).return_().end();
    sink.local_get(0).local_get(1).local_get(2).call(LOG).end();
    function
}
