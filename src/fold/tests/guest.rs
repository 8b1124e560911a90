//! Writes guests as core modules without metadata, in the memory layout of the canonical ABI.

use std::fmt::Write;

use crate::fold::{Ack, Clock, Emit, Manifest, Op, Outcome, Reads, Reject, Tally, Timers};

/// A guest whose answers lie ready in its memory, with room for code of any kind.
pub(super) struct Guest {
    image: Image,
    manifest: u32,
    /// WAT of the bodies; each gives the address of an answer.
    pub(super) describe: Option<String>,
    pub(super) start: String,
    pub(super) resume: String,
    pub(super) flush: String,
    /// More fields of the module.
    pub(super) extra: String,
    /// Pages of memory.
    pub(super) pages: u32,
}

impl Guest {
    /// A guest that consumes every batch and does nothing.
    pub(super) fn new() -> Self {
        Self::returning(&nothing())
    }

    /// A guest that returns this from every call.
    pub(super) fn returning(outcome: &Outcome) -> Self {
        let mut image = Image::default();
        let manifest = image.manifest(&manifest());
        let done = image.done(outcome);
        let body = format!("(i32.const {done})");
        Self {
            image,
            manifest,
            describe: None,
            start: body.clone(),
            resume: body.clone(),
            flush: body,
            extra: String::new(),
            pages: 2,
        }
    }

    /// A guest whose start has this body.
    pub(super) fn starting(body: &str) -> Self {
        Self { start: body.to_owned(), ..Self::new() }
    }

    /// The answer that asks for rows, as the body of a function.
    pub(super) fn asking(&mut self, reads: &Reads) -> String {
        format!("(i32.const {})", self.image.need(reads))
    }

    /// A failure, as the body of a function.
    pub(super) fn failing(&mut self, tag: u8, text: &str) -> String {
        format!("(i32.const {})", self.image.failure(tag, text))
    }

    /// A refusal of the params, as the body of describe.
    pub(super) fn refusing(&mut self, text: &str) -> String {
        format!("(i32.const {})", self.image.refusal(text))
    }

    /// The instructions that log a text.
    pub(super) fn logging(&mut self, level: u8, text: &str) -> String {
        let (at, len) = self.image.text(text);
        format!("(call $log (i32.const {level}) (i32.const {at}) (i32.const {len}))")
    }

    /// Raw bytes in memory; gives their address.
    pub(super) fn bytes(&mut self, bytes: &[u8]) -> u32 {
        self.image.put(8, bytes)
    }

    pub(super) fn wasm(&self) -> Vec<u8> {
        wat::parse_str(self.wat()).expect("the text is a module")
    }

    pub(super) fn wat(&self) -> String {
        let context = "(param i32 i32 i32 i32 i32 i32 i32 i32 i64 i32 i64)";
        let manifest = format!("(i32.const {})", self.manifest);
        let describe = self.describe.as_ref().unwrap_or(&manifest);
        let Self { start, resume, flush, extra, pages, image, .. } = self;
        let data = image.bytes.iter().fold(String::new(), |mut text, byte| {
            write!(text, "\\{byte:02x}").expect("a string takes all");
            text
        });
        let heap = BASE + u32::try_from(image.bytes.len()).expect("a small image");
        format!(
            r#"(module
  (import "$root" "log" (func $log (param i32 i32 i32)))
  (memory (export "memory") {pages})
  (data (i32.const {BASE}) "{data}")
  (global $heap (mut i32) (i32.const {heap}))
  {extra}
  (func (export "cabi_realloc") (param i32 i32 i32) (param $bytes i32) (result i32)
    (local $at i32)
    (local.set $at (i32.and (i32.add (global.get $heap) (i32.const 7)) (i32.const -8)))
    (global.set $heap (i32.add (local.get $at) (local.get $bytes)))
    (block $fits
      (loop $more
        (br_if $fits (i32.le_u (global.get $heap) (i32.mul (memory.size) (i32.const 65536))))
        (drop (memory.grow (i32.const 16)))
        (br $more)))
    (local.get $at))
  (func $describe (export "describe") (param i32 i32) (result i32) {describe})
  (func $start (export "start") {context} (param $batch i32) (param $messages i32) (result i32)
    {start})
  (func $resume (export "resume") (param $rows i32) (param $count i32) (result i32) {resume})
  (func $flush (export "flush") {context} (param $rows i32) (param $count i32) (result i32)
    {flush}))"#
        )
    }
}

/// The manifest of every guest here: one sink, `out`.
pub(super) fn manifest() -> Manifest {
    Manifest {
        name: "by hand".to_owned(),
        version: "1".to_owned(),
        clock: Clock::Messages,
        timers: Timers::Watermark,
        sinks: vec!["out".to_owned()],
        max_batch: 0,
        idle_ms: 0,
    }
}

/// An outcome that consumes the batch and does nothing.
pub(super) fn nothing() -> Outcome {
    Outcome {
        ops: Vec::new(),
        emits: Vec::new(),
        rejects: Vec::new(),
        tallies: Vec::new(),
        ack: Ack::All,
        watermark: None,
    }
}

/// Address of the first byte that is put into a guest's memory.
const BASE: u32 = 1_024;

/// The bytes of a guest's memory from [`BASE`] on.
#[derive(Default)]
struct Image {
    bytes: Vec<u8>,
}

impl Image {
    fn put(&mut self, align: usize, bytes: &[u8]) -> u32 {
        while !self.bytes.len().is_multiple_of(align) {
            self.bytes.push(0);
        }
        let at = BASE + u32::try_from(self.bytes.len()).expect("a small image");
        self.bytes.extend_from_slice(bytes);
        at
    }

    fn text(&mut self, text: &str) -> (u32, u32) {
        (self.put(1, text.as_bytes()), u32::try_from(text.len()).expect("a short text"))
    }

    /// A list of records that were laid out already.
    fn list(&mut self, records: &[Record]) -> (u32, u32) {
        let all: Vec<u8> = records.iter().flat_map(|record| record.0.clone()).collect();
        (self.put(8, &all), u32::try_from(records.len()).expect("a short list"))
    }

    fn texts(&mut self, texts: &[String]) -> (u32, u32) {
        let records: Vec<_> =
            texts.iter().map(|text| Record::new(8).pair(0, self.text(text))).collect();
        self.list(&records)
    }

    fn manifest(&mut self, manifest: &Manifest) -> u32 {
        let record = Record::new(40)
            .pair(4, self.text(&manifest.name))
            .pair(12, self.text(&manifest.version))
            .byte(20, u8::from(manifest.clock == Clock::Host))
            .byte(21, u8::from(manifest.timers == Timers::Clock))
            .pair(24, self.texts(&manifest.sinks))
            .word(32, manifest.max_batch)
            .word(36, manifest.idle_ms);
        self.put(8, &record.0)
    }

    fn refusal(&mut self, text: &str) -> u32 {
        let record = Record::new(40).byte(0, 1).pair(4, self.text(text));
        self.put(8, &record.0)
    }

    fn failure(&mut self, tag: u8, text: &str) -> u32 {
        let record = Record::new(80).byte(0, 1).byte(8, tag).pair(12, self.text(text));
        self.put(8, &record.0)
    }

    fn need(&mut self, reads: &Reads) -> u32 {
        let record = Record::new(80)
            .pair(16, self.texts(&reads.keys))
            .pair(24, self.texts(&reads.prefixes))
            .maybe(32, reads.due);
        self.put(8, &record.0)
    }

    fn done(&mut self, outcome: &Outcome) -> u32 {
        let ops: Vec<_> = outcome.ops.iter().map(|op| self.op(op)).collect();
        let emits: Vec<_> = outcome.emits.iter().map(|emit| self.emit(emit)).collect();
        let rejects: Vec<_> = outcome.rejects.iter().map(|it| self.reject(it)).collect();
        let tallies: Vec<_> = outcome.tallies.iter().map(|it| self.tally(it)).collect();
        let record = Record::new(80)
            .byte(8, 1)
            .pair(16, self.list(&ops))
            .pair(24, self.list(&emits))
            .pair(32, self.list(&rejects))
            .pair(40, self.list(&tallies))
            .maybe(64, outcome.watermark);
        let record = match outcome.ack {
            Ack::All => record,
            Ack::Prefix { count, retry_after_ms } => record
                .byte(48, 1)
                .word(52, count)
                .byte(56, u8::from(retry_after_ms.is_some()))
                .word(60, retry_after_ms.unwrap_or(0)),
        };
        self.put(8, &record.0)
    }

    fn op(&mut self, op: &Op) -> Record {
        match op {
            Op::Upsert { key, value, due_at } => {
                let record = Record::new(40).pair(8, self.text(key)).pair(16, self.text(value));
                record.maybe(24, *due_at)
            }
            Op::Delete { key } => Record::new(40).byte(0, 1).pair(8, self.text(key)),
        }
    }

    fn emit(&mut self, emit: &Emit) -> Record {
        let record = Record::new(36)
            .pair(0, self.text(&emit.queue))
            .pair(8, self.text(&emit.partition))
            .pair(16, self.text(&emit.payload));
        match &emit.transaction_id {
            None => record,
            Some(id) => record.byte(24, 1).pair(28, self.text(id)),
        }
    }

    fn reject(&mut self, reject: &Reject) -> Record {
        Record::new(12).word(0, reject.index).pair(4, self.text(&reject.reason))
    }

    fn tally(&mut self, tally: &Tally) -> Record {
        let [low, high] = halves(tally.count);
        Record::new(16).pair(0, self.text(&tally.cause)).word(8, low).word(12, high)
    }
}

fn halves(n: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = n.to_le_bytes();
    [u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])]
}

/// One record in memory, made field by field.
struct Record(Vec<u8>);

impl Record {
    fn new(size: usize) -> Self {
        Self(vec![0; size])
    }

    fn byte(mut self, at: usize, byte: u8) -> Self {
        self.0[at] = byte;
        self
    }

    fn word(mut self, at: usize, word: u32) -> Self {
        self.0[at..at + 4].copy_from_slice(&word.to_le_bytes());
        self
    }

    fn pair(self, at: usize, (first, second): (u32, u32)) -> Self {
        self.word(at, first).word(at + 4, second)
    }

    fn maybe(self, at: usize, n: Option<i64>) -> Self {
        let [low, high] = halves(n.unwrap_or(0).cast_unsigned());
        self.byte(at, u8::from(n.is_some())).word(at + 8, low).word(at + 12, high)
    }
}
