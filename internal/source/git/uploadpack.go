package git

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stack-controller/stack-controller/internal/file"
	"github.com/stack-controller/stack-controller/internal/throughput"
)

const (
	uploadPackCommand = "git-upload-pack"

	// protocolVersion2 requests version 2, in a header over HTTP or in the variable GIT_PROTOCOL over ssh. Servers that do not know it
	// answer in version 0.
	protocolVersion2 = "version=2"

	// maxAdvertisement bounds in bytes what a server may send about its refs, which is enough for about a million. The answer is read as a
	// stream, and refs that nobody asked for are not kept.
	maxAdvertisement = 64 << 20

	// preparationTime is how long in all a server may be slower than throughput.Minimum in one conversation, for example to prepare a large
	// packfile.
	preparationTime = 2 * time.Minute

	// maxPacket is the longest packet of git's protocol in bytes, including the four bytes of its length.
	maxPacket = 65520

	flushPacket     = "0000"
	delimiterPacket = "0001"

	attemptList = "list the references"
)

var (
	errProtocol      = &knownError{Unreachable, "the answer is not in the protocol of git"}
	errEndOfMessages = fmt.Errorf("%w: it ends too early", errProtocol)
	errBodyTooLarge  = &knownError{TooLarge, "the answer is too large"}
	errObjectFormat  = &knownError{Other, "a repository with another hash function (sha256) than SHA-1 is not supported"}
)

// session carries the requests of a conversation with a server, over HTTP or ssh.
type session interface {
	// advertise requests version 2 of the protocol, and returns the first message of the server.
	advertise(ctx context.Context) (io.Reader, error)
	// request sends a request in the version that the server speaks, and returns the answer. It is called after advertise.
	request(ctx context.Context, version int, body []byte) (io.Reader, error)
	// explain returns why an answer ended too early, if the server has reported that in another way. Otherwise it returns err.
	explain(err error) error
	// mayQuote reports whether the server has received the credentials of the Remote, so that its text may be shown.
	mayQuote() bool
	// close ends the conversation.
	close()
}

// uploadPack is a conversation with the git-upload-pack of a server, by the protocols that gitprotocol-pack (version 0) and
// gitprotocol-v2 describe.
type uploadPack struct {
	*repository
	session
	// ctx is the context of the conversation. It ends when the server is too slow, or with stop. received counts the bytes that the server
	// has sent.
	ctx          context.Context
	stop         func()
	received     throughput.Counter
	capabilities *capabilities
	// advertised has the refs in version 0, after the first one.
	advertised *packetReader
}

// uploadPack starts a conversation, and reads the capabilities of the server. The caller closes it.
func (r *repository) uploadPack(ctx context.Context) (*uploadPack, error) {
	connect := r.connectHTTP
	if r.endpoint.scheme == schemeSSH {
		connect = r.connectSSH
	}
	u := &uploadPack{repository: r}
	u.ctx, u.stop = throughput.Require(ctx, r.client.window, r.client.preparation, u.received.Transferred)
	var err error
	if u.session, err = connect(u.ctx); err != nil {
		u.stop()
		return nil, err
	}
	body, err := u.advertise(u.ctx)
	if err == nil {
		u.advertised = u.reader(body, maxAdvertisement)
		u.capabilities, err = readCapabilities(u.advertised)
	}
	if err != nil {
		defer u.close()
		return nil, u.failure(attemptList, err)
	}
	return u, nil
}

func (u *uploadPack) close() {
	u.session.close()
	u.stop()
}

// reader returns a reader of the packets that the server sends. It fails after most bytes.
func (u *uploadPack) reader(body io.Reader, most int64) *packetReader {
	return &packetReader{source: bounded(io.TeeReader(body, &u.received), most)}
}

// refs asks the server for refs.
func (u *uploadPack) refs(query refQuery) (*refs, error) {
	packets := u.advertised
	if u.capabilities.version == 2 {
		body, err := u.request(u.ctx, 2, query.encode(u.capabilities))
		if err != nil {
			return nil, u.failure(attemptList, err)
		}
		packets = u.reader(body, maxAdvertisement)
	}
	found, err := readRefs(packets, u.capabilities, query)
	if err != nil {
		return nil, u.failure(attemptList, err)
	}
	return found, nil
}

// failure is like repository.failure, for errors in the middle of the conversation.
func (u *uploadPack) failure(attempt string, err error) error {
	if u.ctx.Err() == nil {
		err = u.explain(err)
	}
	var said serverError
	if u.ctx.Err() == nil && errors.As(err, &said) && !u.mayQuote() {
		failed := u.fail(kindOfText(string(said)), "%s: the server reports an error, which is shown only if it receives credentials", attempt)
		failed.Detail, failed.cause = u.secrets.foreign(string(said)), causeOfText(string(said))
		return failed
	}
	return u.repository.failure(u.ctx, attempt, err)
}

// capabilities are the version of the protocol and the features that a server supports.
type capabilities struct {
	// version is 2, or 0 for all earlier versions.
	version int
	// values are the values of the capabilities in knownCapabilities, by name.
	values map[string]string
	// firstRef is the first line about a ref, in version 0; it is "" when there is none.
	firstRef string
}

// knownCapabilities are the capabilities of both versions that this package uses. Others are not kept.
var knownCapabilities = []string{"shallow", "filter", "side-band-64k", "ofs-delta", "no-progress", "multi_ack", "multi_ack_detailed",
	"allow-reachable-sha1-in-want", "object-format", "symref", "fetch", "agent"}

// readCapabilities reads the answer up to the refs (gitprotocol-http, gitprotocol-v2). A session over HTTP names the service first.
func readCapabilities(packets *packetReader) (*capabilities, error) {
	c := &capabilities{values: map[string]string{}}
	line, end, err := packets.line()
	if strings.HasPrefix(line, "# service=") {
		if _, end, err = packets.line(); err == nil && !end {
			err = errProtocol
		}
		if err == nil {
			line, end, err = packets.line()
		}
	}
	if line == "version 1" {
		line, end, err = packets.line()
	}
	if line == "version 2" {
		for c.version = 2; err == nil && !end; line, end, err = packets.line() {
			c.add(line)
		}
	} else {
		text, list, _ := strings.Cut(line, "\x00")
		for capability := range strings.FieldsSeq(list) {
			c.add(capability)
		}
		c.firstRef = text
	}
	if format, found := c.values["object-format"]; err == nil && found && format != "sha1" {
		err = errObjectFormat
	}
	return c, err
}

func (c *capabilities) add(capability string) {
	name, value, _ := strings.Cut(strings.Clone(capability), "=")
	if name == "symref" {
		// In version 0 there is one symref for each symbolic ref.
		from, to, _ := strings.Cut(value, ":")
		if from != headRef || !validRefName(to) {
			return
		}
		value = to
	}
	if slices.Contains(knownCapabilities, name) {
		c.values[name] = value
	}
}

// can reports whether the server has the feature for requests of a packfile. In version 2 it is a feature of the command fetch.
func (c *capabilities) can(feature string) bool {
	if c.version == 2 {
		return slices.Contains(strings.Fields(c.values["fetch"]), feature)
	}
	_, found := c.values[feature]
	return found
}

// command returns a command of version 2.
func (c *capabilities) command(name string, arguments ...string) []byte {
	header := []string{"command=" + name}
	for _, capability := range []string{"agent=stack-controller", "object-format=sha1"} {
		name, _, _ := strings.Cut(capability, "=")
		if _, found := c.values[name]; found {
			header = append(header, capability)
		}
	}
	return []byte(packets(header...) + delimiterPacket + packets(arguments...) + flushPacket)
}

// packets returns the lines as packets.
func packets(lines ...string) string {
	var text strings.Builder
	for _, line := range lines {
		fmt.Fprintf(&text, "%04x%s\n", len(line)+5, line)
	}
	return text.String()
}

// packetReader reads the packets that git's protocol consists of (gitprotocol-common, pkt-line).
type packetReader struct {
	source io.Reader
	buffer [maxPacket]byte
}

// next returns the content of the next packet, which is valid until the next call. end is true for a flush packet and for a delimiter
// packet, which both end a list.
func (p *packetReader) next() (content []byte, end bool, err error) {
	read := func(content []byte) error {
		_, err := io.ReadFull(p.source, content)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return errEndOfMessages
		}
		return err
	}
	if err := read(p.buffer[:4]); err != nil {
		return nil, false, err
	}
	length, err := strconv.ParseUint(string(p.buffer[:4]), 16, 16)
	switch {
	case err != nil || length > maxPacket || length == 2 || length == 3:
		return nil, false, errProtocol
	case length < 4:
		return nil, true, nil
	}
	content = p.buffer[:length-4]
	return content, false, read(content)
}

// line is like next, for packets of text. It removes the line feed, and returns a serverError for a packet ERR.
func (p *packetReader) line() (text string, end bool, err error) {
	content, end, err := p.next()
	if err != nil {
		return "", false, err
	}
	text = strings.TrimSuffix(string(content), "\n")
	if message, isError := strings.CutPrefix(text, "ERR "); isError {
		return "", false, serverError(message)
	}
	return text, end, nil
}

// sideband reads the packfile from packets that also carry progress and errors.
type sideband struct {
	packets *packetReader
	rest    []byte
}

func (s *sideband) Read(p []byte) (int, error) {
	for len(s.rest) == 0 {
		content, end, err := s.packets.next()
		switch {
		case err != nil:
			return 0, err
		case end:
			return 0, io.EOF
		case len(content) == 0 || content[0] == 2: // progress
		case content[0] == 1:
			s.rest = content[1:]
		case content[0] == 3:
			return 0, serverError(content[1:])
		default:
			return 0, errProtocol
		}
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// bounded returns a reader that fails if the source has more than most bytes.
func bounded(source io.Reader, most int64) io.Reader {
	return file.NewReader(source, most, errBodyTooLarge)
}
