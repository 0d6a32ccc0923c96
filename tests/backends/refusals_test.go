package backends_test

import (
	"net/http"
	"testing"

	. "github.com/onsi/gomega"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/postgres"
	"github.com/stack-controller/stack-controller/tests/statuscheck"
)

// The services of clouds are not to be had here: these are the pulumi CLI's own checks, and servers that refuse.
func TestStackSaysWhatABackendMisses(t *testing.T) {
	refusing := refusingServer(t, http.StatusUnauthorized, nil)
	azure := refusingServer(t, http.StatusForbidden, http.Header{"X-Ms-Error-Code": {"AuthenticationFailed"}})
	for name, test := range map[string]struct {
		url  string
		env  variables
		says string
	}{
		"cloud-without-token": {
			url: "http://" + refusing, says: "PULUMI_ACCESS_TOKEN must be set",
		},
		"cloud-with-wrong-token": {
			url: "http://" + refusing, env: variables{"PULUMI_ACCESS_TOKEN": credentialCanary}, says: "No credentials provided or are invalid",
		},
		"s3-without-credentials": {
			url: "s3://state?region=us-east-1&use_path_style=true&endpoint=http://" + store.Address,
			env: variables{"AWS_EC2_METADATA_DISABLED": "true"}, says: "failed to refresh cached credentials",
		},
		"azblob-without-account": {
			url: "azblob://state", says: "AccountName is required",
		},
		"azblob-with-malformed-key": {
			url: "azblob://state", env: variables{"AZURE_STORAGE_ACCOUNT": "acme", "AZURE_STORAGE_KEY": credentialCanary}, says: "decode account key",
		},
		"azblob-with-wrong-key": {
			url: "azblob://state?protocol=http&localemu=true&domain=" + azure,
			env: variables{"AZURE_STORAGE_ACCOUNT": "acme", "AZURE_STORAGE_KEY": "Y3JlZGVudGlhbC1jYW5hcnktYjAxZg=="}, says: "AuthenticationFailed",
		},
		"gs-with-malformed-credentials": {
			url: "gs://state", env: variables{"GOOGLE_CREDENTIALS": `{"private_key": "` + credentialCanary}, says: "unable to parse credentials",
		},
		"gs-with-wrong-key": {
			url: "gs://state", says: "private key should be a PEM", env: variables{"GOOGLE_CREDENTIALS": `{"type": "service_account", ` +
				`"client_email": "acme@example.com", "token_uri": "http://` + refusing + `", "private_key": "` + credentialCanary + `"}`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			app := deploy(t, name, test.url, test.env)
			stack := await(t, app, failing(test.says))
			NewWithT(t).Expect(failureOf(t, app, stack)).To(Equal(autov1alpha1.InvalidAccessTokenReason))
		})
	}
}

func TestUpdateThatPulumiCloudRefusesBesideAnotherIsAConflict(t *testing.T) {
	t.Parallel()
	app := deploy(t, "cloud-busy", busyCloud(t), variables{"PULUMI_ACCESS_TOKEN": credentialCanary}, func(s *pulumiv1.Stack) {
		s.Spec.Stack = "acme/cloud-busy/dev"
	})
	stack := await(t, app, failing("Another update is currently in progress"))
	g := NewWithT(t)
	g.Expect(failureOf(t, app, stack)).To(Equal(autov1alpha1.UpdateConflictReason))
	g.Expect(statuscheck.NotReady(pulumiv1.UpdateConflictReason)(stack)).To(BeTrue())
	g.Expect(stack.Status.LastUpdate.Failures).To(BeZero())
	g.Expect(stack.Status.LastUpdate.Conflicts).To(BeEquivalentTo(1))
}

// Whoever gives the whole URL as a secret may have put the password into it.
func TestPasswordInBackendURLFromSecretIsNeverShown(t *testing.T) {
	t.Parallel()
	needDatabase(t)
	place := "@" + database.Address + "/" + postgres.Database + "?sslmode=disable&table=from_url"
	app := deploy(t, "url-secret", "", variables{"PULUMI_BACKEND_URL": "postgres://" + postgres.User + ":" + credentialCanary + place})
	await(t, app, failing("password authentication failed"))
	// What the CLI cannot read, it takes for Pulumi Cloud.
	replaceCredentials(t, app, variables{"PULUMI_BACKEND_URL": "postgres://" + postgres.User + ":%zz" + credentialCanary + place})
	request(t, app)
	await(t, app, failing("PULUMI_ACCESS_TOKEN must be set"))
	right := variables{"PULUMI_BACKEND_URL": "postgres://" + postgres.User + ":" + database.Password + place}
	replaceCredentials(t, app, right)
	request(t, app)
	await(t, app, showing("1"))
	remove(t, app)
}
