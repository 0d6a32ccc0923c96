package git

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/stack-controller/stack-controller/internal/source/artifact/archive"
)

// historyFactor is how many times as many objects and uncompressed bytes a whole history may have as one commit.
const historyFactor = 3

// want is a request for a packfile.
type want struct {
	objects []string
	shallow bool
	// commitsOnly leaves files and directories out, if the server can do that.
	commitsOnly bool
}

// encode returns the request: in version 0 as gitprotocol-pack describes it, in version 2 the command fetch.
func (w want) encode(c *capabilities) []byte {
	var lines []string
	for _, object := range w.objects {
		lines = append(lines, "want "+object)
	}
	if w.shallow {
		lines = append(lines, "deepen 1")
	}
	filter := w.commitsOnly && c.can("filter")
	if filter {
		lines = append(lines, "filter tree:0")
	}
	if c.version == 2 {
		return c.command("fetch", append(lines, "ofs-delta", "no-progress", "done")...)
	}
	lines[0] += " agent=stack-controller"
	// Some servers, such as Azure DevOps, answer only clients that can negotiate in detail. There is no negotiation in fact, because the
	// request has no "have".
	for _, alternatives := range [][]string{{"side-band-64k"}, {"ofs-delta"}, {"no-progress"}, {"multi_ack_detailed", "multi_ack"}} {
		if n := slices.IndexFunc(alternatives, c.can); n >= 0 {
			lines[0] += " " + alternatives[n]
		}
	}
	if filter {
		lines[0] += " filter"
	}
	return []byte(packets(lines...) + flushPacket + packets("done"))
}

// packFile is a downloaded packfile and the limits of its content. The file has no name any longer: it is gone when it is closed, or when the
// process ends in any way.
type packFile struct {
	*os.File
	limits packLimits
	// tips identifies the tips of a whole history; empty for another packfile.
	tips string
}

// newPackFile creates an empty packFile.
func (r *repository) newPackFile(limits packLimits) (packFile, error) {
	file, err := os.CreateTemp(r.client.options.Dir, "pack-")
	if err != nil {
		return packFile{}, err
	}
	if err := os.Remove(file.Name()); err != nil {
		return packFile{}, errors.Join(err, file.Close())
	}
	return packFile{File: file, limits: limits}, nil
}

// fetch downloads the commit: alone if the server allows that, otherwise with the history of all branches and tags.
//
// Most servers with version 2 of the protocol send any commit that they have; those that are built on JGit send only tips. Other servers send commits that refs point to, and with the
// capability allow-reachable-sha1-in-want also the commits that refs lead to. Without the capability, most servers, such as Azure DevOps
// and git itself, still send those over HTTP, and some refuse.
func (r *repository) fetch(ctx context.Context, sha string) (packFile, error) {
	attempt := "fetch commit " + sha
	server, err := r.uploadPack(ctx)
	if err != nil {
		return packFile{}, err
	}
	defer server.close()
	w := want{objects: []string{sha}, shallow: server.capabilities.can("shallow")}
	mayRefuse := false
	if server.capabilities.version != 2 {
		list, err := server.refs(refQuery{sha: sha})
		switch {
		case err != nil:
			return packFile{}, err
		case !list.any:
			return packFile{}, r.fail(RevisionNotFound, "%s: the repository is empty", attempt)
		case list.object != "":
			w.objects = []string{list.object}
		default:
			mayRefuse = !server.capabilities.can("allow-reachable-sha1-in-want")
		}
	}
	file, err := server.download(w, attempt)
	failed := (*Error)(nil)
	refused := mayRefuse && errors.As(err, &failed) && (failed.Kind == RevisionNotFound || failed.Kind == Unreachable)
	if !refused && !errors.Is(err, errOnlyTips) {
		return file, err
	}
	server.close()
	if file, err = r.fetchHistory(ctx, attempt, sha, false); errors.Is(err, errSearched) {
		return file, r.noSuchCommit(sha)
	}
	return file, err
}

// noSuchCommit is the error for a commit that the whole history does not have.
func (r *repository) noSuchCommit(sha string) error {
	return r.fail(RevisionNotFound, "check out commit %s: no branch or tag has it, and the server gives no other commits", sha)
}

// fetchHistory downloads everything that HEAD, branches and tags lead to, to search for the commit. The error is errSearched if that was in
// vain since the tips were the same, see searches.
func (r *repository) fetchHistory(ctx context.Context, attempt, commit string, commitsOnly bool) (packFile, error) {
	server, err := r.uploadPack(ctx)
	if err != nil {
		return packFile{}, err
	}
	defer server.close()
	list, err := server.refs(refQuery{tips: true, prefixes: []string{headRef, branchPrefix, tagPrefix}})
	switch {
	case err != nil:
		return packFile{}, err
	case list.tooMany:
		return packFile{}, r.fail(TooLarge, "%s: the server sends it with the history of all branches and tags only, which are more than %d", attempt, maxTips)
	case len(list.tips) == 0:
		return packFile{}, r.fail(RevisionNotFound, "%s: the repository is empty", attempt)
	}
	w := want{commitsOnly: commitsOnly}
	for tip := range list.tips {
		w.objects = append(w.objects, tip.String())
	}
	slices.Sort(w.objects)
	tips := sha256.Sum256([]byte(strings.Join(w.objects, " ")))
	if _, known := r.searched(commit, string(tips[:])); known {
		return packFile{}, errSearched
	}
	file, err := server.download(w, attempt)
	file.tips = string(tips[:])
	return file, err
}

// download sends the request and stores the answer.
func (u *uploadPack) download(w want, attempt string) (packFile, error) {
	body, err := u.request(u.ctx, u.capabilities.version, w.encode(u.capabilities))
	if err != nil {
		return packFile{}, u.failure(attempt, err)
	}
	limits := packLimits{objects: maxObjects(u.limits), objectSize: u.limits.MaxUnpackedSize, totalSize: 2 * u.limits.MaxUnpackedSize}
	if !w.shallow {
		limits.objects *= historyFactor
		limits.totalSize *= historyFactor
	}
	file, err := u.newPackFile(limits)
	if errors.Is(err, syscall.ENOSPC) {
		return packFile{}, u.failure(attempt, err)
	}
	if err != nil {
		return packFile{}, u.fail(Other, "%s: no file on the controller's disk: %s", attempt, innermost(err))
	}
	if err := u.store(body, file); err != nil {
		_ = file.Close()
		return packFile{}, u.failure(attempt, err)
	}
	return file, nil
}

// maxObjects is how many objects the packfile of one commit may have. A commit needs one object for each file and directory, and one for
// itself; a server may send some that are not needed.
func maxObjects(limits archive.Limits) int { return 2*limits.MaxEntries + 10 }

func (u *uploadPack) store(body io.Reader, file io.Writer) error {
	most := u.limits.MaxDownloadSize
	// The packets add less than a hundredth to the packfile. The rest is for progress messages, which the client does not ask for.
	packets := u.reader(body, most+most/64+1<<20)
	if err := readToPackfile(packets); err != nil {
		return err
	}
	content := packets.source
	if u.capabilities.version == 2 || u.capabilities.can("side-band-64k") {
		content = &sideband{packets: packets}
	}
	_, err := io.Copy(file, bounded(content, most))
	return err
}

// readToPackfile reads the lines before the packfile: where the history is cut off, and in version 0 the line NAK, which says that client
// and server have no commit in common.
func readToPackfile(packets *packetReader) error {
	for {
		line, end, err := packets.line()
		switch {
		case err != nil:
			return err
		case line == "packfile", line == "NAK":
			return nil
		case !end && line != "shallow-info" && !strings.HasPrefix(line, "shallow ") && !strings.HasPrefix(line, "unshallow "):
			return fmt.Errorf("%w: no packfile", errProtocol)
		}
	}
}
