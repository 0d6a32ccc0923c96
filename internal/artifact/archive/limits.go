package archive

// Limits bounds an archive. A field that is zero or negative stands for its default: nothing is unlimited.
type Limits struct {
	// MaxDownloadSize is the size in bytes of the compressed archive; default 100 MiB.
	MaxDownloadSize int64
	// MaxUnpackedSize is the size in bytes of the archive without compression, including its headers and padding;
	// default 512 MiB.
	MaxUnpackedSize int64
	// MaxEntries is the number of entries, plus directories that no entry names but a file needs; default 100,000.
	MaxEntries int
}

// WithDefaults returns the limits with the defaults filled in.
func (l Limits) WithDefaults() Limits {
	if l.MaxDownloadSize <= 0 {
		l.MaxDownloadSize = 100 << 20
	}
	if l.MaxUnpackedSize <= 0 {
		l.MaxUnpackedSize = 512 << 20
	}
	if l.MaxEntries <= 0 {
		l.MaxEntries = 100_000
	}
	return l
}
