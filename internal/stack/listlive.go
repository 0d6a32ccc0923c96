package stack

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// pageSize is how many objects one answer of the API server has at most. Each may be as large as the API server admits: 1.5 MiB, and several
// times that in memory while it is decoded.
const pageSize = 10

// listLive reads a list from the API server in pages, which visit gets one by one, in a list that nobody else uses. In all of the controller
// there is one page at a time.
func (r *Reconciler) listLive(ctx context.Context, newList func() client.ObjectList, visit func(client.ObjectList), options ...client.ListOption) error {
	for token := ""; ; {
		page := newList()
		if err := r.listPage(ctx, page, visit, append(options[:len(options):len(options)], client.Limit(pageSize), client.Continue(token))); err != nil {
			return err
		}
		if token = page.GetContinue(); token == "" {
			return nil
		}
	}
}

func (r *Reconciler) listPage(ctx context.Context, page client.ObjectList, visit func(client.ObjectList), options []client.ListOption) error {
	r.paging.Lock()
	defer r.paging.Unlock()
	if err := r.Live.List(ctx, page, options...); err != nil {
		return err
	}
	visit(page)
	return nil
}
