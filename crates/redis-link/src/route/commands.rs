//! Commands as they are written.

use redis::{Cmd, Pipeline, Value};

use crate::route::reply::Scan;

/// What is written beside a word: the mark, up to three digits of its length, and the ends of two lines.
const BESIDE_WORD: usize = 8;

/// Commands that are sent in one write.
///
/// They are packed as they are made. As commands of the driver, which are packed later, those of an acquisition cost the client a
/// fifth of its instructions.
#[derive(Debug)]
pub struct Commands {
    bytes: Vec<u8>,
    count: usize,
}

impl Commands {
    /// No commands, with room for this many words of this length in all.
    #[must_use]
    pub fn with_capacity(words: usize, length: usize) -> Self {
        Self { bytes: Vec::with_capacity(length + words * BESIDE_WORD), count: 0 }
    }

    /// Adds a command.
    pub fn add(&mut self, words: &[&str]) {
        self.count += 1;
        self.line(b'*', words.len());
        for word in words {
            self.line(b'$', word.len());
            self.bytes.extend_from_slice(word.as_bytes());
            self.bytes.extend_from_slice(b"\r\n");
        }
    }

    fn line(&mut self, kind: u8, count: usize) {
        self.bytes.push(kind);
        self.bytes.extend_from_slice(itoa::Buffer::new().format(count).as_bytes());
        self.bytes.extend_from_slice(b"\r\n");
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// The same for the driver, which takes no others.
    pub(crate) fn for_driver(&self) -> Pipeline {
        let (mut pipeline, mut rest) = (Pipeline::with_capacity(self.count), &self.bytes[..]);
        while let Ok(Some((Value::Array(words), length))) = Scan::default().next(rest) {
            let mut command = Cmd::new();
            for word in words {
                if let Value::BulkString(word) = word {
                    command.arg(word);
                }
            }
            pipeline.add_command(command);
            rest = &rest[length..];
        }
        pipeline
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_packed_as_the_driver_packs_them() {
        let long = "a".repeat(1000);
        let mut commands = Commands::with_capacity(8, 16);
        let mut pipeline = Pipeline::new();
        for words in [&["SET", "lock:a", "", "NX"][..], &["ECHO", &long], &["ECHO", "a\r\n$1\r\né"]] {
            commands.add(words);
            pipeline.add_command(Cmd::new()).arg(words);
        }
        let packed = pipeline.get_packed_pipeline();
        assert_eq!(commands.count(), pipeline.len());
        assert_eq!(commands.for_driver().get_packed_pipeline(), packed);
        assert_eq!(commands.into_bytes(), packed);
    }
}
