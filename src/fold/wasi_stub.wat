;; The functions of WASI preview 1 that the toolchains of Rust and C link into modules that never
;; use them. They live inside the guest's component and reach nothing: output is swallowed, the
;; environment is empty, time stands still, random bytes are always the same. `wasi_stub.wasm` is
;; this text, compiled; a test compares the two.
(module
  (import "env" "memory" (memory 0))
  ;; Says that every byte was written.
  (func (export "fd_write")
    (param $fd i32) (param $vecs i32) (param $count i32) (param $written i32) (result i32)
    (local $sum i32)
    (block $done
      (loop $next
        (br_if $done (i32.eqz (local.get $count)))
        (local.set $sum (i32.add (local.get $sum) (i32.load offset=4 (local.get $vecs))))
        (local.set $vecs (i32.add (local.get $vecs) (i32.const 8)))
        (local.set $count (i32.sub (local.get $count) (i32.const 1)))
        (br $next)))
    (i32.store (local.get $written) (local.get $sum))
    (i32.const 0))
  ;; 8 is "bad file descriptor", 70 "not seekable".
  (func (export "fd_close") (param i32) (result i32) (i32.const 8))
  (func (export "fd_seek") (param i32 i64 i32 i32) (result i32) (i32.const 70))
  (func (export "fd_fdstat_get") (param i32 i32) (result i32) (i32.const 8))
  (func (export "fd_prestat_get") (param i32 i32) (result i32) (i32.const 8))
  (func (export "fd_prestat_dir_name") (param i32 i32 i32) (result i32) (i32.const 8))
  (func (export "environ_get") (param i32 i32) (result i32) (i32.const 0))
  (func (export "environ_sizes_get") (param $count i32) (param $bytes i32) (result i32)
    (i32.store (local.get $count) (i32.const 0))
    (i32.store (local.get $bytes) (i32.const 0))
    (i32.const 0))
  (func (export "args_get") (param i32 i32) (result i32) (i32.const 0))
  (func (export "args_sizes_get") (param $count i32) (param $bytes i32) (result i32)
    (i32.store (local.get $count) (i32.const 0))
    (i32.store (local.get $bytes) (i32.const 0))
    (i32.const 0))
  (func (export "random_get") (param $at i32) (param $bytes i32) (result i32)
    (memory.fill (local.get $at) (i32.const 42) (local.get $bytes))
    (i32.const 0))
  (func (export "clock_time_get") (param i32 i64) (param $at i32) (result i32)
    (i64.store (local.get $at) (i64.const 0))
    (i32.const 0))
  (func (export "sched_yield") (result i32) (i32.const 0))
  (func (export "proc_exit") (param i32) unreachable))
