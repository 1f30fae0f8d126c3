//! Servers that answer what a test wants.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;

/// A server that answers each command, known by its first word, in this way.
pub async fn pretend(answer: impl Fn(&str) -> String + Clone + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answer = answer.clone();
            tokio::spawn(async move {
                let (reader, mut writer) = stream.into_split();
                let mut lines = BufReader::new(reader).lines();
                while let Ok(Some(line)) = lines.next_line().await {
                    if !line.starts_with('*') {
                        continue;
                    }
                    // The length of the first word, and the word.
                    let _ = lines.next_line().await;
                    let Ok(Some(command)) = lines.next_line().await else { return };
                    let Ok(()) = writer.write_all(answer(&command).as_bytes()).await else { return };
                }
            });
        }
    });
    addr
}

/// The URL of a sentinel that names the master at this port, and announces another to its subscribers.
pub async fn sentinel(names: Arc<AtomicU16>, announces: Option<u16>) -> SocketAddr {
    let channel = bulk("+switch-master");
    pretend(move |command| {
        let names = names.load(Ordering::Relaxed);
        match command {
            "SENTINEL" => format!("*2\r\n{}{}", bulk("127.0.0.1"), bulk(&names.to_string())),
            "SUBSCRIBE" => {
                let confirmed = format!("*3\r\n{}{channel}:1\r\n", bulk("subscribe"));
                let Some(announces) = announces else { return confirmed };
                let address = bulk(&format!("main 127.0.0.1 {names} 127.0.0.1 {announces}"));
                format!("{confirmed}*3\r\n{}{channel}{address}", bulk("message"))
            }
            "PING" => format!("*2\r\n{}{}", bulk("pong"), bulk("")),
            _ => String::from("+OK\r\n"),
        }
    })
    .await
}

pub fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}
