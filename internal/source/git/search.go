package git

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
)

const (
	// maxSearches is how many searches are remembered.
	maxSearches = 4096
	// tooLargeFor is how long a history counts as too large to be searched.
	tooLargeFor = time.Hour
)

// errSearched says that a history was searched before, and that the result is known.
var errSearched = errors.New("the history was searched before")

// search is the result of a search that did not find exactly one commit. It holds as long as the tips are the same: a history is as large as
// a checkout, and must not be downloaded at each poll or attempt.
type search struct {
	tips  string
	found []string
	// tooLarge is until when the history counts as too large, whatever its tips are.
	tooLarge time.Time
}

func (r *repository) searchKey(commit string) string { return r.remote.Key() + " " + commit }

// remember keeps the result of a search for the commit.
func (r *repository) remember(commit string, result search) {
	r.client.searched.Add(r.searchKey(commit), result)
}

// searched returns what is known of a search for the commit among the history of the tips.
func (r *repository) searched(commit, tips string) (found []string, known bool) {
	kept, _ := r.client.searched.Get(r.searchKey(commit))
	result, known := kept.(search)
	return result.found, known && tips != "" && result.tips == tips
}

// searchHistory returns at most two commits that start with the digits, from the history of all branches and tags.
func (c *Client) searchHistory(ctx context.Context, r *repository, digits string) ([]string, error) {
	kept, _ := c.searched.Get(r.searchKey(digits))
	known, _ := kept.(search)
	if time.Now().Before(known.tooLarge) {
		return nil, r.historyTooLarge(digits)
	}
	found, tips, err := c.searchAnew(ctx, r, digits)
	failed := (*Error)(nil)
	switch {
	case errors.Is(err, errSearched):
		return known.found, nil
	case errors.As(err, &failed) && failed.Kind == TooLarge:
		r.remember(digits, search{tooLarge: time.Now().Add(tooLargeFor)})
		return nil, r.historyTooLarge(digits)
	case err == nil && len(found) != 1:
		r.remember(digits, search{tips: tips, found: found})
	}
	return found, err
}

func (r *repository) historyTooLarge(digits string) error {
	return r.fail(TooLarge, "search for commit %s: the history is too large to be searched: give the full hash of the commit, which needs no search", digits)
}

func (c *Client) searchAnew(ctx context.Context, r *repository, digits string) (found []string, tips string, err error) {
	attempt := "search for commit " + digits
	ctx, cancel := context.WithTimeout(ctx, c.options.CheckoutTimeout)
	defer cancel()
	// A history takes space on the disk, and many more requests for refs than checkouts run at the same time.
	done, err := c.searches.Acquire(ctx, r.remote.Namespace)
	if err != nil {
		return nil, "", r.failure(ctx, attempt, errBusy)
	}
	defer done()
	file, err := r.fetchHistory(ctx, attempt, digits, true)
	if err != nil {
		return nil, "", err
	}
	defer file.Close()
	claim := c.memory.newClaim(r.remote.Namespace)
	defer claim.release()
	if err := claim.holdPacks(ctx, 0, file); err != nil {
		return nil, "", r.failure(ctx, attempt, err)
	}
	p, err := openPack(ctx, file.File, file.limits, c.memory)
	if err != nil {
		return nil, "", r.failure(ctx, attempt, err)
	}
	for _, object := range p.objects {
		name := object.hash.String()
		if object.kind == plumbing.CommitObject && strings.HasPrefix(name, digits) && !slices.Contains(found, name) && len(found) < 2 {
			found = append(found, name)
		}
	}
	return found, file.tips, nil
}
