package git

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
)

// historyFactor is how many times the limits of one commit a whole history may have without compression.
const historyFactor = 8

// want is what to ask a server for.
type want struct {
	objects []string
	shallow bool
	// commitsOnly leaves files and directories out, if the server can do that.
	commitsOnly bool
}

// wantFor decides how to get a commit: alone if the server allows that, otherwise with everything that the server shows.
func wantFor(list *advertisement, sha string) want {
	w := want{objects: []string{sha}, shallow: list.capabilities["shallow"]}
	if list.capabilities["allow-reachable-sha1-in-want"] {
		return w
	}
	for _, ref := range list.refs {
		if ref.object == sha || ref.commit == sha {
			w.objects = []string{ref.object}
			return w
		}
	}
	return want{objects: list.tips()}
}

// encode is the request as gitprotocol-pack describes it.
func (w want) encode(list *advertisement) []byte {
	capabilities := []string{"agent=stack-controller"}
	for _, name := range []string{"side-band-64k", "ofs-delta", "no-progress"} {
		if list.capabilities[name] {
			capabilities = append(capabilities, name)
		}
	}
	filter := w.commitsOnly && list.capabilities["filter"]
	if filter {
		capabilities = append(capabilities, "filter")
	}
	// Some servers answer only clients that can negotiate in detail. Without a "have" there is nothing to negotiate.
	if list.capabilities["multi_ack_detailed"] {
		capabilities = append(capabilities, "multi_ack_detailed")
	}
	var text strings.Builder
	for n, object := range w.objects {
		line := "want " + object
		if n == 0 {
			line += " " + strings.Join(capabilities, " ")
		}
		text.WriteString(packet(line + "\n"))
	}
	if w.shallow {
		text.WriteString(packet("deepen 1\n"))
	}
	if filter {
		text.WriteString(packet("filter tree:0\n"))
	}
	text.WriteString(flushPacket + packet("done\n"))
	return []byte(text.String())
}

// fetch downloads the commit, with as much else as the server makes it, into a file in dir.
func (r *repository) fetch(ctx context.Context, dir, sha string) (*pack, error) {
	attempt := "fetch commit " + sha
	session, err := r.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer session.close()
	list, err := r.advertised(ctx, session)
	if err != nil {
		return nil, err
	}
	if len(list.refs) == 0 {
		return nil, r.fail(RevisionNotFound, "%s: the repository is empty", attempt)
	}
	w := wantFor(list, sha)
	p, err := r.download(ctx, session, list, w, dir, attempt)
	if err != nil {
		return nil, err
	}
	if _, found := p.find(plumbing.NewHash(sha)); !found {
		_ = p.close()
		return nil, r.fail(RevisionNotFound, "%s: no branch or tag has it, and the server gives no other commits", attempt)
	}
	return p, nil
}

// download sends the request and stores the answer.
func (r *repository) download(ctx context.Context, s session, list *advertisement, w want, dir, attempt string) (*pack, error) {
	body, err := s.request(ctx, w.encode(list))
	if err != nil {
		return nil, r.failure(ctx, attempt, err)
	}
	file, err := os.CreateTemp(dir, "pack-")
	if err != nil {
		return nil, r.fail(Other, "%s: no file on the controller's disk: %s", attempt, innermost(err))
	}
	p, err := r.store(ctx, body, file, list, w)
	if err != nil {
		_ = file.Close()
		_ = os.Remove(file.Name())
		return nil, r.conversationFailure(ctx, attempt, s, err)
	}
	return p, nil
}

func (r *repository) store(ctx context.Context, body io.Reader, file *os.File, list *advertisement, w want) (*pack, error) {
	limits := r.limits
	// What carries the packfile takes less than a hundredth; the rest is for progress, which nobody asked for.
	stream := &boundedReader{source: body, remaining: limits.MaxDownloadSize + limits.MaxDownloadSize/64 + 1<<20}
	packets := &packetReader{source: stream}
	if err := readPreamble(packets, w.shallow); err != nil {
		return nil, err
	}
	var content io.Reader = stream
	if list.capabilities["side-band-64k"] {
		content = &sideband{packets: packets}
	}
	if _, err := io.Copy(file, &boundedReader{source: content, remaining: limits.MaxDownloadSize}); err != nil {
		return nil, err
	}
	bounds := packLimits{objects: 2*limits.MaxEntries + 10, objectSize: limits.MaxUnpackedSize, totalSize: 2 * limits.MaxUnpackedSize}
	if !w.shallow {
		bounds.objects *= historyFactor
		bounds.totalSize *= historyFactor
	}
	return openPack(ctx, file, bounds)
}

// readPreamble reads what comes before the packfile: where the history is cut off, and that there is nothing in common.
func readPreamble(packets *packetReader, shallow bool) error {
	for shallow {
		line, flush, err := packets.line()
		if err != nil {
			return err
		}
		if flush {
			break
		}
		if !strings.HasPrefix(line, "shallow ") && !strings.HasPrefix(line, "unshallow ") {
			return fmt.Errorf("%w: no packfile", errProtocol)
		}
	}
	line, _, err := packets.line()
	if err != nil {
		return err
	}
	if line != "NAK" {
		return fmt.Errorf("%w: no packfile", errProtocol)
	}
	return nil
}

// sideband reads the packfile out of packets that also carry progress and errors.
type sideband struct {
	packets *packetReader
	rest    []byte
}

func (s *sideband) Read(p []byte) (int, error) {
	for len(s.rest) == 0 {
		content, flush, err := s.packets.next()
		switch {
		case err != nil:
			return 0, err
		case flush:
			return 0, io.EOF
		case len(content) == 0:
			continue
		}
		switch content[0] {
		case 1:
			s.rest = content[1:]
		case 2: // progress
		case 3:
			return 0, serverError(content[1:])
		default:
			return 0, errProtocol
		}
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// searchHistory finds the commits that start with the digits in everything that the server shows.
func (c *Client) searchHistory(ctx context.Context, r *repository, digits string) ([]string, error) {
	attempt := "look for commit " + digits
	ctx, cancel := context.WithTimeout(ctx, c.options.CheckoutTimeout)
	defer cancel()
	dir, err := os.MkdirTemp(c.options.Dir, "git-search-")
	if err != nil {
		return nil, r.fail(Other, "%s: no directory on the controller's disk: %s", attempt, innermost(err))
	}
	defer os.RemoveAll(dir)
	session, err := r.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer session.close()
	list, err := r.advertised(ctx, session)
	if err != nil || len(list.refs) == 0 {
		return nil, err
	}
	p, err := r.download(ctx, session, list, want{objects: list.tips(), commitsOnly: true}, dir, attempt)
	if err != nil {
		return nil, err
	}
	defer p.close()
	var found []string
	for _, object := range p.objects {
		if name := object.hash.String(); object.kind == plumbing.CommitObject && strings.HasPrefix(name, digits) {
			found = append(found, name)
		}
	}
	slices.Sort(found)
	return slices.Compact(found), nil
}
