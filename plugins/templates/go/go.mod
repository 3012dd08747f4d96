module {{name}} // the last part is the plugin's name

go 1.24

require anabranch-sdk v0.0.0

replace anabranch-sdk => ./anabranch-sdk // a copy, until the SDK is published
