//! What a key of Redis may have in the place of an owner.
#![no_main]

use libfuzzer_sys::fuzz_target;
use lock_core::migration::Tombstone;

fuzz_target!(|text: &str| {
    // The fuzzer does not find the mark by itself.
    for value in [text, &format!("polylock:moved {text}")] {
        if let Some(tombstone) = Tombstone::parse(value) {
            assert!(Tombstone::is_one(value));
            assert_eq!(Tombstone::parse(&tombstone.to_string()), Some(tombstone.clone()));
            assert!(!tombstone.moved("redis").to_string().is_empty());
        }
    }
});
