// An OpenID provider, `oidc-provider` of npm: node openid_provider.mjs SETTINGS, JSON with port, client, secret, callback,
// audience, accessTokenSeconds. Whoever logs in by any password has the name as subject. Prints "serving" once it does.
import { generateKeyPairSync } from "node:crypto";
import { createServer } from "node:http";
import { Provider } from "oidc-provider";

const given = JSON.parse(process.argv[2]);
const { privateKey } = generateKeyPairSync("rsa", { modulusLength: 2048 });
const issuer = `http://127.0.0.1:${given.port}`;

const provider = new Provider(issuer, {
  clients: [
    {
      client_id: given.client,
      client_secret: given.secret,
      redirect_uris: [given.callback],
      grant_types: ["authorization_code", "refresh_token"],
      response_types: ["code"],
    },
  ],
  jwks: { keys: [{ ...privateKey.export({ format: "jwk" }), use: "sig", alg: "RS256", kid: "one" }] },
  cookies: { keys: ["a secret of the test"] },
  pkce: { required: () => true },
  issueRefreshToken: async (ctx, client) => client.grantTypeAllowed("refresh_token"),
  ttl: { AccessToken: given.accessTokenSeconds },
  features: {
    revocation: { enabled: true },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => "urn:kafka",
      useGrantedResource: () => true,
      getResourceServerInfo: () => ({
        scope: "",
        audience: given.audience,
        accessTokenFormat: "jwt",
        accessTokenTTL: given.accessTokenSeconds,
        jwt: { sign: { alg: "RS256" } },
      }),
    },
  },
});
for (const event of ["authorization.error", "grant.error", "server_error", "refresh_token.saved", "refresh_token.destroyed",
  "grant.success", "grant.revoked", "revocation.error"]) {
  provider.on(event, (...values) => console.log(event, values.map((each) => each?.error_description ?? each?.message ?? "").join(" ")));
}
createServer(provider.callback()).listen(given.port, "127.0.0.1", () => console.log("serving"));
