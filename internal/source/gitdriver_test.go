package source

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/source/git"
)

const (
	testURL   = "https://git.example/apps/demo"
	canary    = "canary-7d1f"
	firstSHA  = "1111111111111111111111111111111111111111"
	secondSHA = "2222222222222222222222222222222222222222"
)

// gitServers stands in for all servers. It gives the same answer to every request, and records the requests.
type gitServers struct {
	revision git.Revision
	err      error
	// during is called during a request.
	during func()
	asked  []git.Remote
	times  []time.Time
	// names are the refs that were looked for as names only.
	names []string
	now   func() time.Time
}

func (s *gitServers) Resolve(_ context.Context, remote git.Remote, _ string) (git.Revision, error) {
	s.asked = append(s.asked, remote)
	s.times = append(s.times, s.now())
	revision, err := s.revision, s.err
	if s.during != nil {
		s.during()
	}
	if err != nil {
		return git.Revision{}, err
	}
	return revision, nil
}

func (s *gitServers) ResolveName(ctx context.Context, remote git.Remote, ref string) (git.Revision, error) {
	s.names = append(s.names, ref)
	return s.Resolve(ctx, remote, ref)
}

func (s *gitServers) Archive(context.Context, git.Remote, string, io.Writer) (git.Commit, error) {
	return git.Commit{}, errors.New("nothing to check out")
}

// driver runs the loop of a Git step by step, with its own clock.
type driver struct {
	*WithT
	*Git
	t       *testing.T
	time    *clocktesting.FakeClock
	servers *gitServers
	stacks  *GitSubscriber
	client  client.Client
}

func newDriver(t *testing.T, options GitOptions, objects ...client.Object) *driver {
	t.Helper()
	d := &driver{WithT: NewWithT(t), t: t, time: clocktesting.NewFakeClock(time.Unix(1_800_000_000, 0))}
	d.servers = &gitServers{revision: git.Revision{SHA: firstSHA, Ref: "refs/heads/main"}, now: d.time.Now}
	d.client = fake.NewClientBuilder().WithObjects(objects...).Build()
	if options.APIReader == nil {
		options.APIReader = d.client
	}
	d.Git = newGit(options, d.servers, d.time)
	d.stacks = d.NewSubscriber()
	return d
}

// pollAll runs all polls that are due.
func (d *driver) pollAll() {
	d.t.Helper()
	for {
		begun, _ := d.begin()
		if len(begun) == 0 {
			return
		}
		for _, p := range begun {
			d.poll(d.t.Context(), p)
		}
	}
}

// pass lets the time pass, and runs the polls that become due.
func (d *driver) pass(duration time.Duration) {
	d.t.Helper()
	end := d.time.Now().Add(duration)
	d.pollAll()
	for len(d.queue.timed) > 0 && !d.queue.timed[0].due.After(end) {
		d.time.SetTime(d.queue.timed[0].due)
		d.pollAll()
	}
	d.time.SetTime(end)
}

// notified returns the names of the objects that were sent an event since the last call.
func (d *driver) notified() []string {
	notified := []string{}
	for waiter := range d.stacks.notices.Take() {
		notified = append(notified, waiter.Name)
	}
	slices.Sort(notified)
	return notified
}

// questions returns the number of requests to servers since the last call.
func (d *driver) questions() int {
	count := len(d.servers.asked)
	d.servers.asked, d.servers.times = nil, nil
	return count
}

func branch(name string) *autov1alpha1.GitSource {
	return &autov1alpha1.GitSource{URL: testURL, Ref: name}
}

func queryOf(name string, source *autov1alpha1.GitSource) GitQuery {
	return GitQuery{Waiter: types.NamespacedName{Namespace: "team", Name: name}, Source: source, Interval: time.Minute}
}

// resolve asks for the branch main.
func (d *driver) resolve(name string) (*Artifact, error) {
	return d.stacks.Subscribe(queryOf(name, branch("main")))
}

// commit returns the hash of the commit that answers the query.
func (d *driver) commit(query GitQuery) string {
	d.t.Helper()
	found, err := d.stacks.Subscribe(query)
	d.Expect(err).NotTo(HaveOccurred())
	return found.Commit()
}

// problem returns the Problem that answers the query.
func (d *driver) problem(query GitQuery) *Problem {
	d.t.Helper()
	found, err := d.stacks.Subscribe(query)
	d.Expect(found).To(BeNil())
	return problemIn(d.WithT, err)
}

func problemIn(g *WithT, err error) *Problem {
	var problem *Problem
	g.Expect(errors.As(err, &problem)).To(BeTrue(), "%v", err)
	return problem
}

func gitError(kind git.Kind) *git.Error {
	return &git.Error{Kind: kind, Message: "git.example apps/demo: " + string(kind)}
}

func secretOf(name string, data map[string]string) *corev1.Secret {
	secret := &corev1.Secret{Namespace: "team", Name: name, Data: map[string][]byte{}}
	for key, value := range data {
		secret.Data[key] = []byte(value)
	}
	return secret
}
