package git

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// maxPacket is the longest packet of git's protocol in bytes, with the four of its length.
const maxPacket = 65520

var (
	errProtocol      = errors.New("the answer is not in the protocol of git")
	errBodyTooLarge  = errors.New("the answer is too large")
	flushPacket      = "0000"
	errEndOfMessages = fmt.Errorf("%w: it ends too early", errProtocol)
)

// packetReader reads the packets that git's protocol consists of (gitprotocol-common, pkt-line).
type packetReader struct {
	source io.Reader
	buffer [maxPacket]byte
}

// next gives the content of the next packet, which is valid until the call after. A flush packet has flush set.
func (p *packetReader) next() (content []byte, flush bool, err error) {
	if _, err := io.ReadFull(p.source, p.buffer[:4]); err != nil {
		return nil, false, early(err)
	}
	length, err := strconv.ParseUint(string(p.buffer[:4]), 16, 16)
	switch {
	case err != nil || length > maxPacket || (length > 0 && length < 4):
		return nil, false, errProtocol
	case length == 0:
		return nil, true, nil
	}
	content = p.buffer[:length-4]
	if _, err := io.ReadFull(p.source, content); err != nil {
		return nil, false, early(err)
	}
	return content, false, nil
}

// line is next for packets of text, without the line feed. It turns a packet ERR into a serverError.
func (p *packetReader) line() (text string, flush bool, err error) {
	content, flush, err := p.next()
	if err != nil || flush {
		return "", flush, err
	}
	text = strings.TrimSuffix(string(content), "\n")
	if message, isError := strings.CutPrefix(text, "ERR "); isError {
		return "", false, serverError(message)
	}
	return text, false, nil
}

// serverError is what the server says about why it does not answer.
type serverError string

func (e serverError) Error() string { return string(e) }

func early(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errEndOfMessages
	}
	return err
}

// packet is the text as a packet.
func packet(text string) string { return fmt.Sprintf("%04x%s", len(text)+4, text) }

// boundedReader fails after a number of bytes.
type boundedReader struct {
	source    io.Reader
	remaining int64
}

func (b *boundedReader) Read(p []byte) (int, error) {
	if b.remaining <= 0 {
		return 0, errBodyTooLarge
	}
	if int64(len(p)) > b.remaining {
		p = p[:b.remaining]
	}
	n, err := b.source.Read(p)
	b.remaining -= int64(n)
	return n, err
}
