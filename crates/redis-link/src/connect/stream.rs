//! What a connection is opened over.

use tokio::io::{AsyncRead, AsyncWrite};

/// A byte stream that a connection can use; implemented for every suitable type.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Stream for S {}
