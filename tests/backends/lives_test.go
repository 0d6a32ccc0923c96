package backends_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/tests/objectstore"
	"github.com/stack-controller/stack-controller/tests/postgres"
	"github.com/stack-controller/stack-controller/tests/stage/scene"
)

// backend is a real one.
type backend struct {
	url string
	env variables
	// wrong are credentials that it refuses; nil when it has none.
	wrong variables
	// says is part of what is told about them.
	says string
	// stop and resume end it and start it again; nil when that is not possible. Then connections are refused.
	stop   func() error
	resume func(context.Context) error
}

func inDirectory(*testing.T, string) backend { return backend{url: system.BackendURL} }

// inObjectStore is a bucket of the name.
func inObjectStore(t *testing.T, bucket string) backend {
	NewWithT(t).Expect(store.CreateBucket(t.Context(), bucket)).To(Succeed())
	login := func(secretKey string) variables {
		return variables{"AWS_ACCESS_KEY_ID": objectstore.AccessKey, "AWS_SECRET_ACCESS_KEY": secretKey, "AWS_REGION": objectstore.Region}
	}
	return backend{
		url: "s3://" + bucket + "?endpoint=http://" + store.Address + "&disableSSL=true&s3ForcePathStyle=true",
		env: login(store.SecretKey), wrong: login(credentialCanary), says: "SignatureDoesNotMatch",
		stop: store.Stop, resume: store.Resume,
	}
}

// inDatabase is a table of the name, or the one by default. The URL is without a password, which would be for all to read there.
func inDatabase(t *testing.T, table string) backend {
	needDatabase(t)
	option := ""
	if table != "" {
		option = "&table=" + table
	}
	return backend{
		url: "postgres://" + postgres.User + "@" + database.Address + "/" + postgres.Database + "?sslmode=disable" + option,
		env: variables{"PGPASSWORD": database.Password}, wrong: variables{"PGPASSWORD": credentialCanary}, says: "password authentication failed",
		stop: database.Stop, resume: database.Resume,
	}
}

// live takes a Stack through its whole life with the backend.
func (b backend) live(t *testing.T, name string) {
	t.Helper()
	t.Parallel()
	env := b.env
	if b.wrong != nil {
		env = b.wrong
	}
	a := deploy(t, name, b.url, env)
	if b.wrong != nil {
		a.awaitFailure(b.says, autov1alpha1.InvalidAccessTokenReason)
		a.login(b.env)
	}
	stack := a.Await(scene.Showing("1"))
	a.Expect(scene.Output(stack, "hidden")).To(Equal(`"[secret]"`))
	a.Expect(a.resources()).To(Equal(1))
	a.commit("2")
	if b.stop != nil {
		// It says that the backend is away, and goes on by itself when it is back.
		a.Succeed(b.stop())
		a.push(program(name, "3"))
		a.Await(failing("connection refused"))
		a.Succeed(b.resume(t.Context()))
		a.Await(scene.Showing("3"))
	}
	a.remove()
	a.Expect(a.resources()).To(BeZero())
}

func TestStackLivesInDirectory(t *testing.T) { inDirectory(t, "").live(t, "file") }

func TestStackLivesInObjectStore(t *testing.T) { inObjectStore(t, "state").live(t, "s3") }

func TestStackLivesInDatabase(t *testing.T) { inDatabase(t, "").live(t, "postgres") }

func needDatabase(t *testing.T) {
	t.Helper()
	if database == nil {
		t.Skip(postgres.ErrMissing)
	}
}
