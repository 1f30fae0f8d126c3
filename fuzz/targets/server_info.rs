//! The answers to HELLO and INFO.
#![no_main]

use libfuzzer_sys::fuzz_target;
use redis_link::greeting::{Greeting, Identity};
use redis_link::redis::{Value, parse_redis_value};

fuzz_target!(|reply: &[u8]| {
    if let Ok(answer) = parse_redis_value(reply) {
        let _ = Greeting::of_hello(&answer).is_too_old();
    }
    let info = String::from_utf8_lossy(reply).into_owned();
    let _ = Greeting::of_info(&info).is_too_old();
    let _ = Identity::read(Some(Ok(Value::BulkString(info.into()))), Some(Ok(Value::Int(1))));
});
