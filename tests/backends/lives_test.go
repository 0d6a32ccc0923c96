package backends_test

import (
	"testing"

	. "github.com/onsi/gomega"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/tests/objectstore"
	"github.com/stack-controller/stack-controller/tests/postgres"
	"github.com/stack-controller/stack-controller/tests/stage"
)

// backend is a real one.
type backend struct {
	url string
	env variables
	// wrong are credentials that it refuses; nil when it has none.
	wrong variables
	// says is part of what is told about them.
	says string
	// stop and resume end it and start it again; nil when that is not possible. away is part of what is told meanwhile.
	stop   func() error
	resume func() error
	away   string
}

// live takes a Stack through its whole life with the backend.
func (b backend) live(t *testing.T, name string) {
	t.Helper()
	g := NewWithT(t)
	env := b.env
	if b.wrong != nil {
		env = b.wrong
	}
	app := deploy(t, name, b.url, env)
	if b.wrong != nil {
		stack := await(t, app, failing(b.says))
		g.Expect(failureOf(t, app, stack)).To(Equal(autov1alpha1.InvalidAccessTokenReason))
		replaceCredentials(t, app, b.env)
		request(t, app)
	}
	stack := await(t, app, showing("1"))
	g.Expect(string(stack.Status.Outputs["hidden"].Raw)).To(Equal(`"[secret]"`))
	g.Expect(resources(t, app, b.url, b.env)).To(Equal(1))
	commit(t, app, "2")
	await(t, app, showing("2"))
	if b.stop != nil {
		b.outage(t, app)
	}
	remove(t, app)
	g.Expect(resources(t, app, b.url, b.env)).To(BeZero())
}

// outage shows that a Stack says that the backend is away, and goes on by itself when it is back.
func (b backend) outage(t *testing.T, app *stage.App) {
	t.Helper()
	succeed(t, b.stop())
	commit(t, app, "3")
	await(t, app, failing(b.away))
	succeed(t, b.resume())
	await(t, app, showing("3"))
}

func TestStackLivesInDirectory(t *testing.T) {
	t.Parallel()
	backend{url: system.BackendURL}.live(t, "file")
}

func TestStackLivesInObjectStore(t *testing.T) {
	t.Parallel()
	const bucket = "state"
	succeed(t, store.CreateBucket(t.Context(), bucket))
	login := variables{"AWS_ACCESS_KEY_ID": objectstore.AccessKey, "AWS_SECRET_ACCESS_KEY": store.SecretKey, "AWS_REGION": objectstore.Region}
	refused := variables{"AWS_ACCESS_KEY_ID": objectstore.AccessKey, "AWS_SECRET_ACCESS_KEY": credentialCanary, "AWS_REGION": objectstore.Region}
	backend{
		url: "s3://" + bucket + "?endpoint=http://" + store.Address + "&disableSSL=true&s3ForcePathStyle=true",
		env: login, wrong: refused, says: "SignatureDoesNotMatch",
		stop: store.Stop, resume: func() error { return store.Resume(within(t)) }, away: "connection refused",
	}.live(t, "s3")
}

// The URL is without a password, which would be for all to read there.
func TestStackLivesInDatabase(t *testing.T) {
	t.Parallel()
	needDatabase(t)
	backend{
		url: "postgres://" + postgres.User + "@" + database.Address + "/" + postgres.Database + "?sslmode=disable",
		env: variables{"PGPASSWORD": database.Password}, wrong: variables{"PGPASSWORD": credentialCanary}, says: "password authentication failed",
		stop: database.Stop, resume: func() error { return database.Resume(within(t)) }, away: "connection refused",
	}.live(t, "postgres")
}

func needDatabase(t *testing.T) {
	if database == nil {
		t.Skip(postgres.ErrMissing)
	}
}
