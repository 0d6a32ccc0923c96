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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/git"
)

const (
	testURL   = "https://git.example/apps/demo"
	canary    = "canary-7d1f"
	firstSHA  = "1111111111111111111111111111111111111111"
	secondSHA = "2222222222222222222222222222222222222222"
)

// gitServers plays all servers: it answers every question in the same way, and keeps what it was asked.
type gitServers struct {
	revision git.Revision
	err      error
	// during is called while a question is asked.
	during func()
	asked  []git.Remote
	times  []time.Time
	now    func() time.Time
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

func (s *gitServers) Archive(context.Context, git.Remote, string, io.Writer) (git.Commit, error) {
	return git.Commit{}, errors.New("nothing to check out")
}

// driver plays the loop of a Git, one step after the other, on a clock of its own.
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
	if options.Live == nil {
		options.Live = d.client
	}
	d.Git = newGit(options, d.servers, d.time)
	d.stacks = d.NewSubscriber()
	return d
}

// pollAll polls all that is due.
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

// pass lets the time pass, with the polls that are due in it.
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

// notified returns who was sent an event since it was called last.
func (d *driver) notified() []string {
	notified := []string{}
	for waiter := range d.stacks.notices.Take() {
		notified = append(notified, waiter.Name)
	}
	slices.Sort(notified)
	return notified
}

// questions returns how often servers were asked since it was called last.
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

// commit is the hash of the artifact that the query is answered with.
func (d *driver) commit(query GitQuery) string {
	d.t.Helper()
	found, err := d.stacks.Subscribe(query)
	d.Expect(err).NotTo(HaveOccurred())
	return found.Commit()
}

// problem is the one that the query is answered with.
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
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name}, Data: map[string][]byte{}}
	for key, value := range data {
		secret.Data[key] = []byte(value)
	}
	return secret
}
