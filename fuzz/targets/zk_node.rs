//! The data of nodes, and their names.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|node: (&[u8], u64)| {
    let (data, written) = node;
    // A transaction id is signed.
    lock_zk::fuzzing::read(data, written >> 1);
});
