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
//! It has no memory of its own, and allocates none: Go's allocator takes its own last growth for the end of the memory. It
//! must never import anything but the host's log.

use wasm_encoder::{
    BlockType, CodeSection, ConstExpr, EntityType, ExportKind, ExportSection, Function, FunctionSection,
    GlobalSection, GlobalType, ImportSection, InstructionSink, MemArg, MemoryType, Module, TypeSection,
    ValType,
};

/// The module that guests import.
pub(super) const NAME: &str = "wasi_snapshot_preview1";
/// What the names of marks begin with: see [`FUNCTIONS`].
pub(super) const MARK: &str = "anabranch_exports_";

/// Error numbers of WASI.
const SUCCESS: i32 = 0;
const BADF: i32 = 8;
const NOTCAPABLE: i32 = 76;

/// The indices of what the module has.
const LOG: u32 = 0;
const LINE: u32 = 1;
const CLOCK: u32 = 0;
const SEED: u32 = 1;
const PLACE: u32 = 2;
const PLACE_SIZE: u32 = 3;
const FILLED: u32 = 4;

/// A parameter `i` is an i32, `I` an i64. All but `proc_exit` return an error number.
const FUNCTIONS: &[(&str, &str, Answer)] = &[
    // None of WASI's: the SDK for Go gives memory to put lines together, which Go's runtime writes in pieces.
    ("anabranch_lines", "ii", Answer::Code(place)),
    // Marks: who imports one exports the interface. They do nothing.
    ("anabranch_exports_transform", "", Answer::Error(SUCCESS)),
    ("anabranch_exports_sink", "", Answer::Error(SUCCESS)),
    ("anabranch_exports_purge", "", Answer::Error(SUCCESS)),
    ("anabranch_exports_generations", "", Answer::Error(SUCCESS)),
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
    let number = GlobalType { val_type: ValType::I32, ..counter };
    (PLACE..=FILLED).for_each(|_| _ = globals.global(number, &ConstExpr::i32_const(0)));
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

/// `(level, text, size)`: a part of what is written. Where the guest gave a place for lines, they are put together there;
/// else it is logged without the line break at its end, and not at all if that is all.
fn line() -> Function {
    const BYTE: u32 = 3;
    let mut function = Function::new([(1, ValType::I32)]);
    let mut sink = function.instructions();
    sink.global_get(PLACE_SIZE).if_(BlockType::Empty);
    sink.loop_(BlockType::Empty);
    sink.local_get(2).i32_eqz().if_(BlockType::Empty).return_().end();
    sink.local_get(1).i32_load8_u(at(0)).local_tee(BYTE).i32_const(i32::from(b'\n')).i32_ne();
    sink.if_(BlockType::Empty);
    sink.global_get(PLACE).global_get(FILLED).i32_add().local_get(BYTE).i32_store8(at(0));
    sink.global_get(FILLED).i32_const(1).i32_add().global_set(FILLED).end();
    sink.local_get(BYTE).i32_const(i32::from(b'\n')).i32_eq();
    sink.global_get(FILLED).global_get(PLACE_SIZE).i32_eq().i32_or().if_(BlockType::Empty);
    sink.global_get(FILLED).if_(BlockType::Empty);
    sink.local_get(0).global_get(PLACE).global_get(FILLED).call(LOG).end();
    sink.i32_const(0).global_set(FILLED).end();
    sink.local_get(1).i32_const(1).i32_add().local_set(1);
    sink.local_get(2).i32_const(1).i32_sub().local_set(2);
    sink.br(0).end().end();
    sink.local_get(2).i32_eqz().if_(BlockType::Empty).return_().end();
    sink.local_get(2);
    sink.local_get(1).local_get(2).i32_add().i32_const(1).i32_sub().i32_load8_u(at(0));
    sink.i32_const(i32::from(b'\n')).i32_eq().i32_sub().local_tee(2);
    sink.i32_eqz().if_(BlockType::Empty).return_().end();
    sink.local_get(0).local_get(1).local_get(2).call(LOG).end();
    function
}

/// `(place, size)`
fn place(sink: &mut InstructionSink<'_>) {
    sink.local_get(0).global_set(PLACE).local_get(1).global_set(PLACE_SIZE);
    sink.i32_const(0).global_set(FILLED).i32_const(SUCCESS);
}

#[cfg(test)]
mod tests {
    use wasmtime::{Caller, Engine, Instance, Linker, Memory, MemoryType, Module, Store};

    use super::*;

    /// The stub beside a memory, and the lines that it logs.
    struct Guest {
        store: Store<Vec<(i32, String)>>,
        memory: Memory,
        stub: Instance,
    }

    impl Guest {
        fn new() -> Self {
            let engine = Engine::default();
            let mut store = Store::new(&engine, Vec::new());
            let memory = Memory::new(&mut store, MemoryType::new(1, None)).unwrap();
            let mut linker = Linker::new(&engine);
            linker.define(&store, "env", "memory", memory).unwrap();
            let log = move |mut caller: Caller<'_, Vec<(i32, String)>>, level: i32, text: u32, size: u32| {
                let mut bytes = vec![0; size as usize];
                memory.read(&caller, text as usize, &mut bytes).unwrap();
                caller.data_mut().push((level, String::from_utf8(bytes).unwrap()));
            };
            linker.func_wrap("anabranch:plugin/log@1.0.0", "log", log).unwrap();
            let module = Module::new(&engine, module()).unwrap();
            let stub = linker.instantiate(&mut store, &module).unwrap();
            Self { store, memory, stub }
        }

        fn call<P: wasmtime::WasmParams>(&mut self, name: &str, parameters: P) -> i32 {
            let function = self.stub.get_typed_func::<P, i32>(&mut self.store, name).unwrap();
            function.call(&mut self.store, parameters).unwrap()
        }

        /// Writes parts at once, as `writev` does.
        fn print(&mut self, descriptor: i32, parts: &[&str]) {
            let (mut text, mut size) = (1000, 0);
            for (at, part) in parts.iter().enumerate() {
                self.memory.write(&mut self.store, text, part.as_bytes()).unwrap();
                let vector = (text as u64) | ((part.len() as u64) << 32);
                self.memory.write(&mut self.store, 100 + 8 * at, &vector.to_le_bytes()).unwrap();
                text += part.len();
                size += part.len() as u64;
            }
            let count = i32::try_from(parts.len()).unwrap();
            assert_eq!(self.call("fd_write", (descriptor, 100, count, 50)), SUCCESS);
            assert_eq!(self.number(50) & 0xffff_ffff, size, "all is written");
        }

        fn lines(&mut self) -> Vec<(i32, String)> {
            std::mem::take(self.store.data_mut())
        }

        fn number(&self, place: usize) -> u64 {
            let mut bytes = [0; 8];
            self.memory.read(&self.store, place, &mut bytes).unwrap();
            u64::from_le_bytes(bytes)
        }
    }

    fn line(level: i32, text: &str) -> (i32, String) {
        (level, text.to_owned())
    }

    #[test]
    fn what_is_printed_becomes_lines_of_the_log() {
        let mut guest = Guest::new();
        guest.print(1, &["a line", "\n"]);
        guest.print(2, &["", "\n", "a warning\n", "and more"]);
        assert_eq!(guest.lines(), [line(2, "a line"), line(1, "a warning"), line(1, "and more")]);
        assert_eq!(guest.call("fd_write", (3, 100, 1, 50)), BADF);
    }

    #[test]
    fn lines_are_put_together_where_there_is_a_place() {
        let mut guest = Guest::new();
        assert_eq!(guest.call("anabranch_lines", (2000, 16)), SUCCESS);
        for part in ["panic: ", "7", "\n", "\n", "gor", "outine\nx"] {
            guest.print(2, &[part]);
        }
        assert_eq!(guest.lines(), [line(1, "panic: 7"), line(1, "goroutine")]);
        guest.print(2, &["0123456789abcdef", "ghi\n"]);
        assert_eq!(guest.lines(), [line(1, "x0123456789abcde"), line(1, "fghi")], "no longer than the place");
    }

    #[test]
    fn clocks_go_and_sleeping_takes_no_time() {
        let mut guest = Guest::new();
        let mut now = || {
            assert_eq!(guest.call("clock_time_get", (0, 1_i64, 200)), SUCCESS);
            guest.number(200)
        };
        assert!(now() < now());
        let before = now();
        // A subscription: whose, a clock, how long.
        for (place, value) in [(300, 7_u64), (308, 0), (316, 1), (324, 5_000_000_000), (340, 0)] {
            guest.memory.write(&mut guest.store, place, &value.to_le_bytes()).unwrap();
        }
        assert_eq!(guest.call("poll_oneoff", (300, 400, 1, 500)), SUCCESS);
        assert_eq!((guest.number(400), guest.number(408), guest.number(500) & 0xffff_ffff), (7, 0, 1));
        assert_eq!(guest.call("clock_time_get", (1, 1_i64, 200)), SUCCESS);
        assert!((5_000_000_000..5_000_010_000).contains(&(guest.number(200) - before)));
        // Until a time: there already.
        for (place, value) in [(324, 9_000_000_000_u64), (340, 1)] {
            guest.memory.write(&mut guest.store, place, &value.to_le_bytes()).unwrap();
        }
        assert_eq!(guest.call("poll_oneoff", (300, 400, 1, 500)), SUCCESS);
        assert_eq!(guest.call("clock_time_get", (1, 1_i64, 200)), SUCCESS);
        assert_eq!(guest.number(200), 9_000_001_000);
        // A file's.
        guest.memory.write(&mut guest.store, 308, &[1]).unwrap();
        assert_eq!(guest.call("poll_oneoff", (300, 400, 1, 500)), NOTCAPABLE);
    }

    #[test]
    fn random_bytes_differ_and_are_always_the_same() {
        let bytes = [(); 2].map(|()| {
            let mut guest = Guest::new();
            assert_eq!(guest.call("random_get", (600, 16)), SUCCESS);
            (guest.number(600), guest.number(608), guest.number(616))
        });
        assert_eq!(bytes[0], bytes[1]);
        assert!(bytes[0].0 != bytes[0].1 && bytes[0].0 != 0 && bytes[0].2 == 0, "{bytes:?}");
    }

    #[test]
    fn there_is_nothing_else() {
        let mut guest = Guest::new();
        guest.memory.write(&mut guest.store, 700, &[0xff; 16]).unwrap();
        assert_eq!(guest.call("environ_sizes_get", (700, 704)), SUCCESS);
        assert_eq!(guest.number(700), 0);
        assert_eq!(guest.call("path_open", (3, 0, 0, 0, 0, 0_i64, 0_i64, 0, 0)), NOTCAPABLE);
        assert_eq!(guest.call("fd_prestat_get", (3, 700)), BADF);
        assert_eq!(guest.call("fd_fdstat_get", (3, 700)), BADF);
        assert_eq!(guest.call("fd_fdstat_get", (1, 700)), SUCCESS);
        let exit = guest.stub.get_typed_func::<i32, ()>(&mut guest.store, "proc_exit").unwrap();
        exit.call(&mut guest.store, 0).unwrap_err();
    }
}
